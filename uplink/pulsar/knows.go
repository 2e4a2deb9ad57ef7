package pulsar

import (
	"context"
	"reflect"

	"github.com/apache/pulsar-client-go/pulsar"

	"edgegateway/pipeline"
	"edgegateway/uplink"
)

var _ uplink.Knower = (*session)(nil)

// Knows implements uplink.Knower. What the broker takes for a repeat is what is not above the highest sequence id that it has seen of the
// producer's name, which has the epoch in it; it said so when the producer was made.
func (s *session) Knows(_ context.Context, id pipeline.RecordID) (bool, error) {
	return s.ordered && id.Seq < s.next, nil
}

// nextSequence returns the number behind the highest one that the broker had when the producer was made. The library counts on from it
// and does not show it (Producer.LastSequenceID only knows what this producer has sent), so it is read from its fields; a test wants
// them to be there.
func nextSequence(producer pulsar.Producer) (next uint64, ok bool) {
	parts := field(field(reflect.ValueOf(producer), "producers"), "v")
	if parts.Kind() != reflect.Interface || parts.Elem().Kind() != reflect.Slice || parts.Elem().Len() != 1 {
		return 0, false
	}
	counter := field(parts.Elem().Index(0), "sequenceIDGenerator")
	if counter.Kind() != reflect.Pointer || counter.IsNil() || counter.Elem().Kind() != reflect.Uint64 {
		return 0, false
	}
	return counter.Elem().Uint(), true
}

// field returns a field of a struct, also through pointers and interfaces; the zero Value where there is none.
func field(v reflect.Value, name string) reflect.Value {
	for v.Kind() == reflect.Interface || v.Kind() == reflect.Pointer {
		v = v.Elem()
	}
	if v.Kind() != reflect.Struct {
		return reflect.Value{}
	}
	return v.FieldByName(name)
}
