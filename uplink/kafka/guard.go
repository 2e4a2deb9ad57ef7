package kafka

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"

	"edgegateway/uplink"
)

// nothingHangs makes sure that no transaction of an earlier session is open in a partition that we write. After a crash of a broker
// its coordinator may hold one for ended while a partition does not: the broker has answered the commit, and as it starts again it forgets
// to write the markers, in some partitions or in all (measured: after three of eight crashes). Our next commit would make the records there
// visible, and they would be doubled; to abort them loses what was confirmed. So it is ended first, the way that it was decided.
func (s *exact) nothingHangs(ctx context.Context, producer int64, v *survey, acked uint64) error {
	for _, repair := range []bool{true, false} {
		open, err := s.hanging(ctx, producer, v)
		if err != nil || len(open) == 0 {
			return err
		}
		if !repair {
			return fmt.Errorf("a transaction that a crash of a broker left open hangs in %v, and records in it would be doubled "+
				"(want it ended there: kafka-transactions.sh; the gateway tries again by itself)", places(open))
		}
		cursor, committed, err := s.wasCommitted(ctx, producer, places(open), v, acked)
		if err != nil {
			return err
		}
		marked, err := s.mend(ctx, open, cursor, committed)
		if err != nil {
			return fmt.Errorf("end the open transaction in %v: %w", places(open), s.explain(err))
		}
		s.log.Warn("a transaction that hung was ended", "partitions", fmt.Sprint(places(open)), "committed", committed, "by_markers", marked)
		if err := s.lookAgain(ctx, v); err != nil {
			return err
		}
	}
	return nil
}

// mend ends what hangs with a marker in each partition, or, from the first that takes none from us, with a transaction of ours. The
// cursor's partition is the first: what a kill leaves between two markers, the next session decides the same way, for after a commit the
// far cursor counts the records that still hang, and after an abort it does not.
func (s *exact) mend(ctx context.Context, open []hung, cursor uplink.FarCursor, commit bool) (marked bool, err error) {
	if i := slices.IndexFunc(open, func(h hung) bool { return h.place == s.cursorAt }); i > 0 {
		open[0], open[i] = open[i], open[0]
	}
	versions, err := s.admin.ApiVersions(ctx)
	if err != nil {
		return false, err
	}
	for i, h := range open {
		if err := s.hooks.mend(); err != nil {
			return false, err
		}
		err := errNoMarkers
		if h.leader >= 0 && !s.hooks.unmarked {
			err = s.mark(ctx, h, versions[h.leader], commit)
		}
		switch {
		case errors.Is(err, errNoMarkers) && commit:
			return false, s.write(ctx, cursor, places(open[i:])...)
		case errors.Is(err, errNoMarkers):
			return false, s.abortIn(ctx, places(open[i:]), cursor)
		case err != nil:
			return false, s.explainOf(h.topic, err)
		}
	}
	return true, s.hooks.mend()
}

// mend is where a test stops the repair, as a kill would: before each step of it, and after the last.
func (h hooks) mend() error {
	if h.mending != nil {
		return h.mending()
	}
	return nil
}

// markerVersion is the version of WriteTxnMarkers that we need. It says how strictly the broker looks at the epoch; and a broker that is not
// Kafka may know the ones before it, and abort what hangs whatever the marker says.
const markerVersion = 2

// errNoMarkers says that a broker takes no marker from us.
var errNoMarkers = errors.New("the broker takes no transaction markers from this user")

// mark writes the marker that ends what hangs in a partition. Its epoch is that of this session, which has fenced the one that hangs: where a
// newer one has written, the broker refuses it, should it come late. Without an answer it is not sent again, so that no copy of it is on its
// way when a transaction of our own begins.
func (s *exact) mark(ctx context.Context, h hung, versions kadm.BrokerApiVersions, commit bool) error {
	if versions.Err != nil {
		return versions.Err
	}
	if version, _ := versions.KeyMaxVersion(int16(kmsg.WriteTxnMarkers)); version < markerVersion {
		return errNoMarkers
	}
	producer, epoch, err := s.client.ProducerID(ctx)
	if err != nil {
		return err
	}
	in := kmsg.NewWriteTxnMarkersRequestMarkerTopic()
	in.Topic, in.Partitions = h.topic, []int32{h.partition}
	marker := kmsg.NewWriteTxnMarkersRequestMarker()
	marker.ProducerID, marker.ProducerEpoch, marker.Committed = producer, epoch, commit
	marker.CoordinatorEpoch = max(h.coordinator, 0)
	marker.TransactionVersion = 2 // the epoch must be above the last one there
	marker.Topics = []kmsg.WriteTxnMarkersRequestMarkerTopic{in}
	write := kmsg.NewPtrWriteTxnMarkersRequest()
	write.Markers = []kmsg.WriteTxnMarkersRequestMarker{marker}
	answer, err := s.client.Broker(int(h.leader)).Request(ctx, write)
	if err != nil {
		return err
	}
	for _, m := range answer.(*kmsg.WriteTxnMarkersResponse).Markers {
		for _, t := range m.Topics {
			for _, p := range t.Partitions {
				switch err := kerr.ErrorForCode(p.ErrorCode); {
				case errors.Is(err, kerr.ClusterAuthorizationFailed), errors.Is(err, kerr.UnsupportedVersion), errors.Is(err, kerr.InvalidRequest):
					return errNoMarkers
				default:
					return err
				}
			}
		}
	}
	return fmt.Errorf("%s has not answered for %v", s.address, h.place)
}

// place is a partition that is written.
type place struct {
	topic     string
	partition int32
}

// hung is a place in which a transaction of ours is open. leader and coordinator are what WriteTxnMarkers needs, below 0 if not known.
type hung struct {
	place
	leader      int32 // the broker
	coordinator int32 // epoch of the coordinator that wrote the last marker there
}

func places(open []hung) (out []place) {
	for _, h := range open {
		out = append(out, h.place)
	}
	return out
}

func (p place) String() string { return fmt.Sprintf("topic %s, partition %d", p.topic, p.partition) }

// survey is how far the partitions of both topics go, up to where all is decided, and where they begin. What there is of earlier
// sessions lies below ends.
type survey struct{ ends, decided, begins map[place]int64 }

// look asks for all three at once. decided may be from before ends, and is asked for again where it falls short.
func (s *exact) look(ctx context.Context) (*survey, error) {
	v := &survey{}
	var asking sync.WaitGroup
	var errs [3]error
	asking.Go(func() { v.ends, errs[0] = s.offsets(s.admin.ListEndOffsets(ctx, s.topic, s.cursorTopic)) })
	asking.Go(func() { v.decided, errs[1] = s.offsets(s.admin.ListCommittedOffsets(ctx, s.topic, s.cursorTopic)) })
	asking.Go(func() { v.begins, errs[2] = s.offsets(s.admin.ListStartOffsets(ctx, s.cursorTopic)) })
	asking.Wait()
	for _, err := range errs {
		if err != nil {
			return nil, err
		}
	}
	return v, nil
}

// offsets returns what the broker has listed.
func (s *exact) offsets(listed kadm.ListedOffsets, err error) (map[place]int64, error) {
	out := map[place]int64{}
	listed.Each(func(o kadm.ListedOffset) {
		out[place{o.Topic, o.Partition}] = o.Offset
		if err == nil && o.Err != nil {
			err = s.explainOf(o.Topic, o.Err)
		}
	})
	return out, err
}

// writes reports whether sessions of ours write to a partition.
func (s *exact) writes(p place) bool { return p.topic == s.topic || p == s.cursorAt }

// hanging returns where a transaction of this producer is open below ends, after a moment in which that may pass.
func (s *exact) hanging(ctx context.Context, producer int64, v *survey) ([]hung, error) {
	for patience := time.Now().Add(time.Second); ; {
		undecided := s.undecided(v)
		if len(undecided) == 0 {
			return nil, nil
		}
		open, known := s.openOf(ctx, producer, undecided)
		if len(open) == 0 && known {
			return nil, nil // other producers', which are theirs to end
		}
		if time.Now().After(patience) {
			if !known {
				for _, p := range undecided { // perhaps ours: aborting one of our own there does no harm
					if !slices.Contains(places(open), p) {
						open = append(open, hung{p, -1, -1})
					}
				}
			}
			return open, nil
		}
		if err := wait(ctx); err != nil {
			return nil, err
		}
		if err := s.lookAgain(ctx, v); err != nil {
			return nil, err
		}
	}
}

// lookAgain asks again up to where all is decided.
func (s *exact) lookAgain(ctx context.Context, v *survey) (err error) {
	v.decided, err = s.offsets(s.admin.ListCommittedOffsets(ctx, s.topic, s.cursorTopic))
	return err
}

// undecided returns the partitions of ours in which somebody's transaction is open below ends.
func (s *exact) undecided(v *survey) (out []place) {
	for p, end := range v.ends {
		if s.writes(p) && v.decided[p] < end {
			out = append(out, p)
		}
	}
	return out
}

// openOf returns in which places the transaction is this producer's. known is false where the broker does not tell.
func (s *exact) openOf(ctx context.Context, producer int64, places []place) (open []hung, known bool) {
	var set kadm.TopicsSet
	for _, p := range places {
		set.Add(p.topic, p.partition)
	}
	described, err := s.admin.DescribeProducers(ctx, set)
	if err != nil {
		return nil, false
	}
	known = true
	answered := 0
	described.EachPartition(func(p kadm.DescribedProducersPartition) {
		answered++
		known = known && p.Err == nil
		for _, d := range p.ActiveProducers {
			if d.ProducerID == producer && d.CurrentTxnStartOffset >= 0 {
				open = append(open, hung{place{p.Topic, p.Partition}, d.Leader, d.CoordinatorEpoch})
			}
		}
	})
	return open, known && answered == len(places)
}

// wasCommitted tells whether what hangs belongs to a transaction that was committed, and the far cursor as it is to be then. It was if the
// cursor that hangs stands in the log of the gateway, which has had the broker's answer; if other records of it are visible; or, where
// no cursor hangs that would move the far one, if that counts records that hang. All of these have their answers then, for the commit
// comes behind them. Otherwise nobody counts on it.
func (s *exact) wasCommitted(ctx context.Context, producer int64, open []place, v *survey, acked uint64) (to uplink.FarCursor, committed bool, err error) {
	far, err := s.decidedCursor(ctx, v)
	if err != nil {
		return far, false, err
	}
	if slices.Contains(open, s.cursorAt) {
		if to, err = s.openCursor(ctx, producer, v); err != nil {
			return far, false, err
		}
	}
	switch {
	case to == far || to == uplink.FarCursor{}:
		committed, err = s.anyCounted(ctx, producer, open, v, far)
	case to.Epoch == s.epoch && to.Seq <= acked:
		committed = true
	default:
		committed, err = s.anyVisible(ctx, producer, open, v, far)
	}
	if !committed || to == (uplink.FarCursor{}) {
		to = far
	}
	return to, committed, err
}

// decidedCursor returns the newest cursor of ours that is committed, without what is not decided.
func (s *exact) decidedCursor(ctx context.Context, v *survey) (uplink.FarCursor, error) {
	below := *v
	below.ends = maps.Clone(v.ends)
	below.ends[s.cursorAt] = min(v.ends[s.cursorAt], v.decided[s.cursorAt])
	return s.readCursor(ctx, &below)
}

// openCursor returns the last cursor of ours that hangs.
func (s *exact) openCursor(ctx context.Context, producer int64, v *survey) (at uplink.FarCursor, err error) {
	err = s.read(ctx, s.cursorAt, v.decided[s.cursorAt], v.ends[s.cursorAt], kgo.ReadUncommitted(), func(r *kgo.Record) error {
		var value cursorValue
		if r.ProducerID == producer && string(r.Key) == s.key && json.Unmarshal(r.Value, &value) == nil {
			at = uplink.FarCursor(value)
		}
		return nil
	})
	return at, err
}

// anyCounted tells whether the far cursor counts one of our records that hang.
func (s *exact) anyCounted(ctx context.Context, producer int64, open []place, v *survey, far uplink.FarCursor) (found bool, err error) {
	for _, p := range open {
		err := s.read(ctx, p, v.decided[p], v.ends[p], kgo.ReadUncommitted(), func(r *kgo.Record) error {
			at := recordCursor(r)
			found = found || r.ProducerID == producer && at.Epoch == far.Epoch && at.Seq > 0 && at.Seq <= far.Seq
			return nil
		})
		if found || err != nil {
			return found, err
		}
	}
	return false, nil
}

// anyVisible tells whether a record of ours beyond the far cursor is visible, in a partition in which nothing hangs. It looks back from
// the end until a record of ours says that those before it are older.
func (s *exact) anyVisible(ctx context.Context, producer int64, open []place, v *survey, far uplink.FarCursor) (found bool, err error) {
	begins, err := s.offsets(s.admin.ListStartOffsets(ctx, s.topic))
	if err != nil {
		return false, err
	}
	for p, begin := range begins {
		if slices.Contains(open, p) {
			continue
		}
		end := min(v.ends[p], v.decided[p])
		for window, older := int64(2000), false; begin < end && !found && !older; window *= 10 {
			from := max(begin, end-window)
			err := s.read(ctx, p, from, end, kgo.ReadCommitted(), func(r *kgo.Record) error {
				if at := recordCursor(r); r.ProducerID == producer && at.Seq > 0 {
					newer := at.Epoch > far.Epoch || at.Epoch == far.Epoch && at.Seq > far.Seq
					found, older = found || newer, older || !newer
				}
				return nil
			})
			if err != nil {
				return false, err
			}
			older = older || from == begin
		}
	}
	return found, nil
}

// recordCursor returns the cursor behind a record of ours, by its headers.
func recordCursor(r *kgo.Record) (at uplink.FarCursor) {
	for _, h := range r.Headers {
		n, err := strconv.ParseUint(string(h.Value), 10, 64)
		switch {
		case err != nil:
		case h.Key == "gw-epoch":
			at.Epoch = n
		case h.Key == "gw-seq":
			at.Seq = n
		}
	}
	return at
}

// abortIn begins a transaction in each place and aborts it: the marker ends the one that hangs as well. The far cursor stays as it is.
func (s *exact) abortIn(ctx context.Context, places []place, far uplink.FarCursor) error {
	if err := s.client.BeginTransaction(); err != nil {
		return err
	}
	tx := &transaction{}
	for _, p := range places {
		rec := &kgo.Record{Topic: p.topic, Partition: p.partition, Key: []byte(s.key)}
		if p == s.cursorAt {
			rec = s.cursorRecord(far)
		}
		s.put(tx, rec)
	}
	flushed := s.client.Flush(ctx)
	if err := s.hooks.mend(); err != nil {
		return err
	}
	ended := s.client.EndTransaction(ctx, kgo.TryAbort)
	_, err := tx.faults()
	for _, e := range []error{err, flushed, ended} {
		if e != nil {
			return e
		}
	}
	return nil
}

// addPlaces adds partitions to the transaction that is open, without a record in them, so that it is ended there too.
func (s *exact) addPlaces(ctx context.Context, places []place) error {
	if len(places) == 0 {
		return nil
	}
	add := kmsg.NewPtrAddPartitionsToTxnRequest()
	for _, p := range places {
		if p == s.cursorAt {
			continue // its record has brought it in
		}
		of := kmsg.NewAddPartitionsToTxnRequestTopic()
		of.Topic, of.Partitions = p.topic, []int32{p.partition}
		add.Topics = append(add.Topics, of)
	}
	if len(add.Topics) > 0 {
		if err := s.sendAdd(ctx, add); err != nil {
			return err
		}
	}
	return s.hooks.mend()
}

// sendAdd sends the request of addPlaces.
func (s *exact) sendAdd(ctx context.Context, add *kmsg.AddPartitionsToTxnRequest) error {
	producer, epoch, err := s.client.ProducerID(ctx)
	if err != nil {
		return err
	}
	add.TransactionalID, add.ProducerID, add.ProducerEpoch = s.id, producer, epoch
	versions := kversion.Stable()
	versions.SetMaxKeyVersion(int16(kmsg.AddPartitionsToTxn), 3) // later ones are for brokers among themselves
	client, err := kgo.NewClient(append(slices.Clip(s.options), kgo.MaxVersions(versions))...)
	if err != nil {
		return err
	}
	defer client.Close()
	answer, err := add.RequestWith(ctx, client)
	if err != nil {
		return err
	}
	for _, topic := range answer.Topics {
		for _, p := range topic.Partitions {
			if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
				return s.explainOf(topic.Topic, err)
			}
		}
	}
	return nil
}
