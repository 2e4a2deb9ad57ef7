package main

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"
	"github.com/redis/go-redis/v9"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"edgegateway/control"
	"edgegateway/test/rig"
)

// secret is what an uplink signs in with, in generations. The first two are known to the server together, where it can know two; the
// third one alone, and for as long as the file has the second one the sign-in fails.
type secret struct {
	uplink string               // its section
	save   func(generation int) // writes the file
	knows  func(generations ...int)
	two    bool            // the server knows two at a time
	stored func() []string // topics of the records at the far side
}

// renews has records flow all the time, the secret renewed before the old one ends and after, and wants each record there.
func renews(t *testing.T, s *site, of secret) {
	s.write("streams:\n  main: {from: [broker], uplinks: [far]}\nuplinks:\n  far: " + of.uplink + "\n")
	of.knows(1)
	of.save(1)
	s.start()
	ctx, cancel := context.WithCancel(t.Context())
	sent := make(chan int, 1)
	go func() {
		n := 0
		for ctx.Err() == nil {
			n++
			s.put(fmt.Sprintf("m/%d", n), "1")
			time.Sleep(10 * time.Millisecond)
		}
		sent <- n
	}()
	defer cancel()
	flows := func() {
		t.Helper()
		want := s.g.gather().Uplinks[0].Acked + 50
		eventually(t, "records flow", func() bool { return s.g.gather().Uplinks[0].Acked >= want })
	}
	flows()
	second := 1
	if of.two {
		second = 2
		of.knows(1, 2)
		before := s.g.gather().Uplinks[0].Since
		of.save(2)
		eventually(t, "a session begins anew", func() bool {
			u := s.g.gather().Uplinks[0]
			return u.State == control.Sending && !u.Since.Equal(before)
		})
		flows()
		of.knows(2)
		flows()
		if text := s.logs.String(); strings.Contains(text, "uplink failed") {
			t.Errorf("a renewal in time is no failure:\n%s", text)
		}
	}
	of.knows(3)
	eventually(t, fmt.Sprintf("generation %d ends", second), func() bool { return s.g.gather().Uplinks[0].Error != "" })
	t.Logf("in plain words: %s", s.g.gather().Uplinks[0].Error)
	of.save(3)
	flows()
	cancel()
	n := <-sent
	eventually(t, "all have arrived", func() bool { return s.g.gather().Uplinks[0].Backlog.Records == 0 })
	status := s.g.gather()
	if u := status.Uplinks[0]; u.Acked != uint64(n) || u.DeadLetters != 0 || u.Error != "" || status.Streams[0].Dropped != 0 {
		t.Errorf("%d records are confirmed, %d refused, %d dropped, error %q; want all %d and no error",
			u.Acked, u.DeadLetters, status.Streams[0].Dropped, u.Error, n)
	}
	stored := of.stored()
	slices.Sort(stored)
	if got := len(slices.Compact(stored)); got != n {
		t.Errorf("%d records are at the far side, want %d", got, n)
	}
}

func TestRenewedNATSCredentials(t *testing.T) {
	t.Parallel() // it waits more than it works
	const section = "{driver: nats, servers: [%q], stream: EDGE, create: true, %s}"
	t.Run("token_file", func(t *testing.T) {
		knows := func(generation int) string { return fmt.Sprintf("authorization { token: secret%d }", generation) }
		server := rig.NATS(t, rig.NATSOptions{Settings: knows(1)})
		s := newSite(t, "")
		renews(t, s, secret{
			uplink: fmt.Sprintf(section, server.Addr, "token_file: token"),
			save:   func(g int) { s.save("token", fmt.Appendf(nil, "secret%d\n", g)) },
			knows:  func(g ...int) { server.Reload(knows(g[0])) },
			stored: func() []string { return topics(natsMessages(t, server.Addr, nats.Token("secret3"))) },
		})
	})
	t.Run("nkey_file", func(t *testing.T) {
		users := []nkeys.KeyPair{1: newKey(t, nkeys.PrefixByteUser), 2: newKey(t, nkeys.PrefixByteUser), 3: newKey(t, nkeys.PrefixByteUser)}
		knows := func(generations ...int) string {
			text := ""
			for _, g := range generations {
				text += "{ nkey: " + public(t, users[g]) + " }, "
			}
			return "authorization { users: [ " + text + "] }"
		}
		server := rig.NATS(t, rig.NATSOptions{Settings: knows(1)})
		s := newSite(t, "")
		renews(t, s, secret{
			uplink: fmt.Sprintf(section, server.Addr, "nkey_file: "+filepath.Join(s.dir, "seed")), two: true,
			save:  func(g int) { s.save("seed", seed(t, users[g])) },
			knows: func(g ...int) { server.Reload(knows(g...)) },
			stored: func() []string {
				option, err := nats.NkeyOptionFromSeed(filepath.Join(s.dir, "seed"))
				if err != nil {
					t.Fatal(err)
				}
				return topics(natsMessages(t, server.Addr, option))
			},
		})
	})
	t.Run("creds_file", func(t *testing.T) {
		signer := newOperator(t)
		server := rig.NATS(t, rig.NATSOptions{Settings: signer.settings()})
		s := newSite(t, "")
		renews(t, s, secret{
			uplink: fmt.Sprintf(section, server.Addr, "creds_file: "+filepath.Join(s.dir, "creds")), two: true,
			save:  func(g int) { s.save("creds", signer.credentials(g, time.Now().Add(time.Hour))) },
			knows: func(g ...int) { server.Reload(signer.settings(g...)) },
			stored: func() []string {
				return topics(natsMessages(t, server.Addr, nats.UserCredentials(filepath.Join(s.dir, "creds"))))
			},
		})
	})
}

func TestRenewedRedisPassword(t *testing.T) {
	t.Parallel() // it waits more than it works
	server := rig.Redis(t)
	client := redis.NewClient(&redis.Options{Addr: server.Addr})
	defer func() { _ = client.Close() }()
	do := func(args ...any) {
		t.Helper()
		if err := client.Do(t.Context(), args...).Err(); err != nil {
			t.Fatalf("%v: %v", args, err)
		}
	}
	s := newSite(t, "")
	renews(t, s, secret{
		uplink: fmt.Sprintf("{driver: redis, address: %q, key: all, user: gw, password_file: password}", server.Addr), two: true,
		save: func(g int) { s.save("password", fmt.Appendf(nil, "secret%d\n", g)) },
		knows: func(generations ...int) {
			words := []any{"ACL", "SETUSER", "gw", "reset", "on", "~*", "+@all"}
			for _, g := range generations {
				words = append(words, fmt.Sprintf(">secret%d", g))
			}
			do(words...)
			if generations[0] == 3 { // by itself the server lets who has signed in go on
				do("CLIENT", "KILL", "USER", "gw")
			}
		},
		stored: func() (list []string) {
			entries, err := client.XRange(t.Context(), "all", "-", "+").Result()
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range entries {
				list = append(list, fmt.Sprint(e.Values["topic"]))
			}
			return list
		},
	})
}

// A token has its generation in it (jti): two that are made in one second would be the same otherwise, and nothing renewed.

// lifetime is that of a token of the first two generations, where a server ends them by their time.
const lifetime = 6 * time.Second

func ends(generation int) time.Time {
	if generation < 3 {
		return time.Now().Add(lifetime)
	}
	return time.Now().Add(time.Hour)
}

func TestRenewedKafkaToken(t *testing.T) {
	t.Parallel() // it waits more than it works
	server := rig.KafkaWith(t, rig.KafkaOptions{Listeners: map[string]string{"SASL": "SASL_PLAINTEXT"}, Settings: []string{
		"listener.name.sasl.sasl.enabled.mechanisms=OAUTHBEARER", "connections.max.reauth.ms=3600000",
		"listener.name.sasl.oauthbearer.sasl.jaas.config=org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required " +
			`unsecuredLoginStringClaim_sub="broker";`,
	}})
	client, err := kgo.NewClient(kgo.SeedBrokers(server.Addr), kgo.ConsumeTopics("edge"), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if _, err := kadm.NewClient(client).CreateTopic(t.Context(), 1, 1, nil, "edge"); err != nil {
		t.Fatal(err)
	}
	s := newSite(t, "")
	renews(t, s, secret{
		uplink: fmt.Sprintf("{driver: kafka, brokers: [%q], topic: edge, sasl: oauthbearer, token_file: %s}",
			server.At["SASL"], filepath.Join(s.dir, "token")),
		two: true,
		save: func(g int) {
			s.save("token", []byte(webToken(`{"alg":"none"}`, map[string]any{"sub": "gw", "iat": time.Now().Unix(), "exp": ends(g).Unix(), "jti": fmt.Sprint(g)}, nil)))
		},
		knows: func(...int) {}, // they end by their time
		stored: func() []string {
			list := map[string]bool{}
			for len(list) < int(s.g.gather().Uplinks[0].Acked) {
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
				fetches := client.PollFetches(ctx)
				cancel()
				if err := fetches.Err(); err != nil {
					t.Error(err)
					break
				}
				fetches.EachRecord(func(r *kgo.Record) { list[topicOf(t, r.Value)] = true })
			}
			return keysOfSet(list)
		},
	})
}

func TestRenewedPulsarToken(t *testing.T) {
	t.Parallel() // it waits more than it works
	key := []byte("a key of 32 bytes and some more !")
	sign := func(user, id string, end time.Time) string {
		return webToken(`{"alg":"HS256"}`, map[string]any{"sub": user, "jti": id, "exp": end.Unix()}, func(text string) []byte {
			mac := hmac.New(sha256.New, key)
			mac.Write([]byte(text))
			return mac.Sum(nil)
		})
	}
	admin := sign("admin", "0", time.Now().Add(time.Hour))
	broker := rig.NewPulsar(t, "authenticationEnabled=true", "authenticationRefreshCheckSeconds=1",
		"authenticationProviders=org.apache.pulsar.broker.authentication.AuthenticationProviderToken",
		"tokenSecretKey=data:;base64,"+base64.StdEncoding.EncodeToString(key),
		"brokerClientAuthenticationPlugin=org.apache.pulsar.client.impl.auth.AuthenticationToken", "brokerClientAuthenticationParameters=token:"+admin)
	broker.Token = admin
	broker.Begin()
	s := newSite(t, "")
	renews(t, s, secret{
		uplink: fmt.Sprintf("{driver: pulsar, servers: [%q], topic: edge, token_file: %s}", broker.Addr, filepath.Join(s.dir, "token")), two: true,
		save:  func(g int) { s.save("token", []byte(sign("gw", fmt.Sprint(g), ends(g)))) },
		knows: func(...int) {}, // they end by their time
		stored: func() []string {
			client, err := pulsar.NewClient(pulsar.ClientOptions{URL: "pulsar://" + broker.Addr, Authentication: pulsar.NewAuthenticationToken(admin)})
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			reader, err := client.CreateReader(pulsar.ReaderOptions{Topic: "edge", StartMessageID: pulsar.EarliestMessageID()})
			if err != nil {
				t.Fatal(err)
			}
			defer reader.Close()
			list := map[string]bool{}
			for reader.HasNext() {
				m, err := reader.Next(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				list[topicOf(t, m.Payload())] = true
			}
			return keysOfSet(list)
		},
	})
}

func topicOf(t *testing.T, payload []byte) string {
	var a arrived
	if err := json.Unmarshal(payload, &a); err != nil {
		t.Errorf("%q: %v", payload, err)
	}
	return a.Topic
}

func keysOfSet(set map[string]bool) (list []string) {
	for key := range set {
		list = append(list, key)
	}
	return list
}

// webToken makes a JSON web token; without sign it has an empty signature.
func webToken(header string, claims map[string]any, sign func(string) []byte) string {
	body, err := json.Marshal(claims)
	if err != nil {
		panic(err)
	}
	encode := base64.RawURLEncoding.EncodeToString
	text := encode([]byte(header)) + "." + encode(body)
	if sign == nil {
		return text + "."
	}
	return text + "." + encode(sign(text))
}

func newKey(t *testing.T, kind nkeys.PrefixByte) nkeys.KeyPair {
	t.Helper()
	key, err := nkeys.CreatePair(kind)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func public(t *testing.T, key nkeys.KeyPair) string {
	t.Helper()
	text, err := key.PublicKey()
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func seed(t *testing.T, key nkeys.KeyPair) []byte {
	t.Helper()
	text, err := key.Seed()
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// natsOperator signs the accounts of a NATS server, one of which signs users.
type natsOperator struct {
	t                     *testing.T
	self, system, account nkeys.KeyPair
	users                 []nkeys.KeyPair // by generation
	made                  time.Time
}

func newOperator(t *testing.T) *natsOperator {
	user := func() nkeys.KeyPair { return newKey(t, nkeys.PrefixByteUser) }
	return &natsOperator{
		t, newKey(t, nkeys.PrefixByteOperator), newKey(t, nkeys.PrefixByteAccount), newKey(t, nkeys.PrefixByteAccount),
		[]nkeys.KeyPair{1: user(), 2: user(), 3: user()},
		time.Now(),
	}
}

// sign makes the token of a subject, signed by another key.
func (o *natsOperator) sign(by, of nkeys.KeyPair, end time.Time, what map[string]any) string {
	what["version"] = 2
	claims := map[string]any{"jti": "test", "iat": o.made.Unix(), "iss": public(o.t, by), "sub": public(o.t, of), "name": "test", "nats": what}
	if !end.IsZero() {
		claims["exp"] = end.Unix()
	}
	return webToken(`{"typ":"JWT","alg":"ed25519-nkey"}`, claims, func(text string) []byte {
		signature, err := by.Sign([]byte(text))
		if err != nil {
			o.t.Fatal(err)
		}
		return signature
	})
}

// settings are those of a server that takes the users of some generations; of all where none is given.
func (o *natsOperator) settings(generations ...int) string {
	revoked := map[string]int64{}
	for g, user := range o.users {
		if g > 0 && len(generations) > 0 && !slices.Contains(generations, g) {
			revoked[public(o.t, user)] = time.Now().Add(time.Minute).Unix()
		}
	}
	limits := map[string]any{"subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "wildcards": true, "conn": -1, "leaf": -1}
	system := o.sign(o.self, o.system, time.Time{}, map[string]any{"type": "account", "limits": limits})
	stored := map[string]any{"mem_storage": -1, "disk_storage": -1, "streams": -1, "consumer": -1}
	maps.Copy(stored, limits)
	account := o.sign(o.self, o.account, time.Time{}, map[string]any{"type": "account", "limits": stored, "revocations": revoked})
	return fmt.Sprintf("operator: %s\nsystem_account: %s\nresolver: MEMORY\nresolver_preload {\n  %s: %s\n  %s: %s\n}\n",
		o.sign(o.self, o.self, time.Time{}, map[string]any{"type": "operator", "system_account": public(o.t, o.system)}), public(o.t, o.system),
		public(o.t, o.system), system, public(o.t, o.account), account)
}

// credentials are the content of a creds_file.
func (o *natsOperator) credentials(generation int, end time.Time) []byte {
	user := o.users[generation]
	return fmt.Appendf(nil, "-----BEGIN NATS USER JWT-----\n%s\n------END NATS USER JWT------\n\n"+
		"-----BEGIN USER NKEY SEED-----\n%s\n------END USER NKEY SEED------\n",
		o.sign(o.account, user, end, map[string]any{"type": "user", "subs": -1, "data": -1, "payload": -1}), seed(o.t, user))
}
