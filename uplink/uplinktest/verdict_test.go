package uplinktest

import (
	"slices"
	"testing"
)

// TestJudge shows the suite places that are as they should be, and places in which one thing is wrong.
func TestJudge(t *testing.T) {
	records := func(numbers ...int) (list []Stored) {
		for _, n := range numbers {
			list = append(list, asStored(n))
		}
		return list
	}
	other := func(list []Stored, i int) []Stored {
		list = slices.Clone(list)
		list[i].Payload = "{}"
		return list
	}
	all := records(1, 2, 3, 4, 5, 6, 7, 8, 9, 10)
	for _, row := range []struct {
		name          string
		latest        bool
		stored        []Stored
		after, sent   int
		dead          map[int]bool
		lost, doubled int
		wrong         bool
	}{
		{name: "all is there", stored: all, sent: 10},
		{name: "without a dead letter", stored: records(1, 3), sent: 3, dead: map[int]bool{2: true}},
		{name: "a dead letter at the end", stored: records(1, 2), sent: 3, dead: map[int]bool{3: true}},
		{name: "from the fourth on", stored: records(4, 5), after: 3, sent: 5},
		{name: "one is lost", stored: records(1, 3), sent: 3, lost: 1, wrong: true},
		{name: "the last one is lost", stored: records(1, 2), sent: 3, lost: 1, wrong: true},
		{name: "one comes again", stored: records(1, 2, 1, 2, 3), sent: 3, doubled: 2},
		{name: "two have changed places", stored: records(2, 1, 3), sent: 3, wrong: true},
		{name: "a dead letter is there", stored: records(1, 2), sent: 2, dead: map[int]bool{2: true}, wrong: true},
		{name: "one too many", stored: records(1, 2, 3), sent: 2, wrong: true},
		{name: "other contents", stored: other(all, 4), sent: 10, wrong: true},
		{name: "the last of each topic", latest: true, stored: records(10, 4, 5, 6, 7, 8, 9), sent: 10},
		{name: "the last but a dead letter", latest: true, stored: records(3, 4, 5, 6, 7, 8, 9), sent: 10, dead: map[int]bool{10: true}},
		{name: "a topic is missing", latest: true, stored: records(4, 5, 6, 7, 8, 9), sent: 10, lost: 1},
		{name: "a topic has an older one", latest: true, stored: records(3, 4, 5, 6, 7, 8, 9), sent: 10, lost: 1, wrong: true},
		{name: "a topic has other contents", latest: true, stored: other(records(4, 5, 6, 7, 8, 9, 10), 2), sent: 10, wrong: true},
	} {
		v := Suite{Latest: row.latest}.judge(row.stored, row.after, row.sent, row.dead)
		if v.sent != row.sent-row.after || v.lost != row.lost || v.doubled != row.doubled || v.wrong != nil != row.wrong {
			t.Errorf("%s: %+v, want lost %d doubled %d and an error: %v", row.name, v, row.lost, row.doubled, row.wrong)
		}
	}
}

func TestInSequence(t *testing.T) {
	stored := []Stored{asStored(10), asStored(2), asStored(2), asStored(1)}
	inSequence(stored)
	if want := []Stored{asStored(1), asStored(2), asStored(2), asStored(10)}; !slices.Equal(stored, want) {
		t.Errorf("%v, want %v", stored, want)
	}
}
