package redis_test

import (
	"fmt"
	"net"
	"slices"
	"strconv"
	"testing"
	"time"

	client "github.com/redis/go-redis/v9"

	"edgegateway/test/rig"
	"edgegateway/uplink"
	"edgegateway/uplink/redis"
	"edgegateway/uplink/uplinktest"
)

// cluster is one as its administrator sees it.
type cluster struct {
	*client.ClusterClient
	t     *testing.T
	nodes []*rig.Server
}

func newCluster(t *testing.T, replicated bool) cluster {
	t.Helper()
	nodes := rig.RedisCluster(t, 3, replicated)
	var addrs []string
	for _, n := range nodes {
		addrs = append(addrs, n.Addr)
	}
	c := client.NewClusterClient(&client.ClusterOptions{Addrs: addrs, MaxRedirects: 16})
	t.Cleanup(func() { _ = c.Close() }) // the test is over
	return cluster{c, t, nodes}
}

func (c cluster) at(node *rig.Server, args ...any) any {
	c.t.Helper()
	v, err := connect(c.t, node.Addr).Do(c.t.Context(), args...).Result()
	if err != nil {
		c.t.Fatalf("%s: %v: %v", node.Addr, args, err)
	}
	return v
}

func (c cluster) id(node *rig.Server) string { return c.at(node, "CLUSTER", "MYID").(string) }

// owner returns the number of the node that has a slot, among those that run.
func (c cluster) owner(slot int) int {
	c.t.Helper()
	for deadline := time.Now().Add(patient); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		for i, n := range c.nodes {
			k := connect(c.t, n.Addr)
			shards, err := k.ClusterShards(c.t.Context()).Result()
			if err != nil {
				continue // it does not run
			}
			for _, s := range shards {
				if hasSlot(s.Slots, slot) && isMaster(s.Nodes, n.Addr) {
					return i
				}
			}
		}
	}
	c.t.Fatalf("nobody has slot %d", slot)
	return 0
}

func hasSlot(ranges []client.SlotRange, slot int) bool {
	return slices.ContainsFunc(ranges, func(r client.SlotRange) bool { return int(r.Start) <= slot && slot <= int(r.End) })
}

func isMaster(nodes []client.Node, addr string) bool {
	return slices.ContainsFunc(nodes, func(n client.Node) bool {
		return n.Role == "master" && net.JoinHostPort(n.Endpoint, strconv.FormatInt(n.Port, 10)) == addr
	})
}

// failOver has a replica take over from a master that runs. Where the machine is slow an attempt may run out of time.
func (c cluster) failOver(slot int, replica *rig.Server) {
	c.t.Helper()
	for range 10 {
		c.at(replica, "CLUSTER", "FAILOVER")
		for range 100 {
			if c.nodes[c.owner(slot)] == replica {
				return
			}
			time.Sleep(50 * time.Millisecond)
		}
	}
	c.t.Fatal("the replica has not taken over")
}

// kept returns how many records a replica has at a key.
func (c cluster) kept(replica *rig.Server, as, key string) int {
	c.t.Helper()
	p := connect(c.t, replica.Addr).Pipeline()
	p.ReadOnly(c.t.Context())
	n := p.Do(c.t.Context(), map[string]string{"stream": "XLEN", "list": "LLEN"}[as], key)
	if _, err := p.Exec(c.t.Context()); err != nil {
		c.t.Fatal(err)
	}
	return int(n.Val().(int64))
}

// drivers are the driver for each kind and promise that can be at one node of a cluster.
func (c cluster) drivers(t *testing.T, run func(t *testing.T, as, key string, driver uplink.Driver)) {
	for i, d := range []struct {
		as    string
		exact bool
	}{{"stream", true}, {"list", true}, {"stream", false}} {
		key := "k" + strconv.Itoa(i)
		cfg := &redis.Config{Cluster: []string{c.nodes[2].Addr, c.nodes[0].Addr}, As: d.as, Key: key}
		name, driver := d.as+" effectively_once", uplink.Driver(cfg)
		if d.exact {
			name, driver = d.as+" exactly_once", exactly{cfg}
		}
		t.Run(name, func(t *testing.T) { run(t, d.as, key, driver) })
	}
}

func TestEachKeyOfAClusterIsFoundWhereItIs(t *testing.T) {
	c := newCluster(t, false)
	used := map[int]bool{}
	for i := range 6 {
		for _, as := range []string{"stream", "list"} {
			key := fmt.Sprintf("%s:%d", as, i)
			g := run(t, exactly{&redis.Config{Cluster: []string{c.nodes[i%3].Addr}, As: as, Key: key}}, uplinktest.NewLog(), "")
			g.send(60)
			g.stop()
			holds(t, c.ClusterClient, as, key, 60)
			used[c.owner(int(c.ClusterKeySlot(t.Context(), key).Val()))] = true
		}
	}
	if len(used) != 3 {
		t.Errorf("the keys are at the nodes %v only", used)
	}
	g := run(t, &redis.Config{Cluster: []string{"127.0.0.1:1", c.nodes[1].Addr}, As: "latest", Key: "now"}, uplinktest.NewLog(), "")
	g.send(100)
	for topic, want := range map[string]string{"t0": "99", "t1": "100", "t2": "98"} {
		if got := c.HGet(t.Context(), "now:"+topic, "seq").Val(); got != want {
			t.Errorf("topic %s is at %s, want %s", topic, got, want)
		}
	}
}

func TestANodeOfAClusterAsTheAddressIsToldSo(t *testing.T) {
	c := newCluster(t, false)
	slot := int(c.ClusterKeySlot(t.Context(), "k").Val())
	other := c.nodes[(c.owner(slot)+1)%3]
	single := rig.Redis(t)
	nowhere := []string{"127.0.0.1:1", "127.0.0.1:2"}
	uplinktest.RunFaults(t, []uplinktest.Fault{
		{Name: "a node that has not the key", Driver: exactly{&redis.Config{Address: other.Addr, Key: "k"}}, Want: "want its nodes in cluster", Config: true},
		{
			Name: "hashes at a server without a cluster", Want: "is no node of a cluster", Config: true,
			Driver: &redis.Config{Cluster: []string{single.Addr}, Key: "k", As: "latest"},
		},
		{Name: "no node answers", Driver: exactly{&redis.Config{Cluster: nowhere, Key: "k"}}, Want: "127.0.0.1:1 refuses the connection"},
	})
}

// TestASlotThatMovesInMidFlow has the keys go to another node one by one, so that there is a time when some are here and some there, and
// one when the new node has them but not their slot.
func TestASlotThatMovesInMidFlow(t *testing.T) {
	c := newCluster(t, false)
	c.drivers(t, func(t *testing.T, as, key string, driver uplink.Driver) {
		g := run(t, driver, uplinktest.NewLog(), "")
		g.send(50)
		slot := int(c.ClusterKeySlot(t.Context(), key).Val())
		for range 3 {
			more := make(chan struct{})
			go func() { // while all this happens
				defer close(more)
				for range 300 {
					g.append(1)
					time.Sleep(time.Millisecond)
				}
			}()
			from := c.owner(slot)
			to := (from + 1) % 3
			src, dst := c.nodes[from], c.nodes[to]
			c.at(dst, "CLUSTER", "SETSLOT", slot, "IMPORTING", c.id(src))
			c.at(src, "CLUSTER", "SETSLOT", slot, "MIGRATING", c.id(dst))
			host, port, _ := splitAddr(dst.Addr)
			for range 10 { // keys that come meanwhile, too
				keys, _ := c.at(src, "CLUSTER", "GETKEYSINSLOT", slot, 1).([]any)
				if len(keys) == 0 {
					break
				}
				c.at(src, "MIGRATE", host, port, keys[0], 0, 5000)
				time.Sleep(60 * time.Millisecond)
			}
			<-more
			g.send(20) // by ASK, for the slot has not moved
			for _, n := range []*rig.Server{dst, src, c.nodes[3-from-to]} {
				c.at(n, "CLUSTER", "SETSLOT", slot, "NODE", c.id(dst))
			}
			g.send(30)
		}
		g.stop()
		holds(t, c.ClusterClient, as, key, g.log.Len())
		if s := g.Status(); s.Error != "" {
			t.Errorf("Error = %q, want none any more", s.Error)
		}
	})
	t.Run("latest", func(t *testing.T) {
		g := run(t, &redis.Config{Cluster: []string{c.nodes[0].Addr}, As: "latest", Key: "n"}, uplinktest.NewLog(), "")
		g.send(50)
		slot := int(c.ClusterKeySlot(t.Context(), "n:t1").Val())
		from := c.owner(slot)
		src, dst, third := c.nodes[from], c.nodes[(from+1)%3], c.nodes[(from+2)%3]
		c.at(dst, "CLUSTER", "SETSLOT", slot, "IMPORTING", c.id(src))
		c.at(src, "CLUSTER", "SETSLOT", slot, "MIGRATING", c.id(dst))
		host, port, _ := splitAddr(dst.Addr)
		c.at(src, "MIGRATE", host, port, "n:t1", 0, 5000)
		g.send(50)
		for _, n := range []*rig.Server{dst, src, third} {
			c.at(n, "CLUSTER", "SETSLOT", slot, "NODE", c.id(dst))
		}
		g.send(50)
		if got := c.HGet(t.Context(), "n:t1", "seq").Val(); got != "148" {
			t.Errorf("seq %s, want 148", got)
		}
	})
}

// TestAFailOverOfAClusterThatLostWritesIsMadeUpFor has a master confirm records that its replica never sees.
func TestAFailOverOfAClusterThatLostWritesIsMadeUpFor(t *testing.T) {
	c := newCluster(t, true)
	for _, as := range []string{"stream", "list"} {
		t.Run(as, func(t *testing.T) {
			key := "lost-" + as
			slot := int(c.ClusterKeySlot(t.Context(), key).Val())
			g := run(t, exactly{&redis.Config{Cluster: []string{c.nodes[0].Addr, c.nodes[1].Addr, c.nodes[2].Addr}, As: as, Key: key}}, uplinktest.NewLog(), "")
			g.send(100)
			at := c.owner(slot)
			master, replica := c.nodes[at], c.nodes[(at+3)%6]
			g.append(200)
			c.failOver(slot, replica) // as an administrator does it: nothing is lost
			g.settle()
			master, replica = replica, master
			rig.RedisReplica(t, replica)
			g.send(100)
			for deadline := time.Now().Add(patient); c.kept(replica, as, key) != 400; time.Sleep(20 * time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatal("the replica does not get all")
				}
			}
			replica.Kill9()
			g.send(100) // only the master has them
			master.Kill9()
			replica.Start()
			if n := c.kept(replica, as, key); n != 400 {
				t.Fatalf("the replica has %d records, want the first 400: the test shows nothing", n)
			}
			g.append(100)
			g.settle()
			holds(t, c.ClusterClient, as, key, 600)
			master.Start()
			rig.RedisReplica(t, master)
			g.send(50)
			holds(t, c.ClusterClient, as, key, 650)
			if s := g.Status(); s.Error != "" {
				t.Errorf("Status = %+v, want no error", s)
			}
		})
	}
}
