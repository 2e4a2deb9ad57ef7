package mqtt

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// Limits of topics and filters. mochi walks a topic once for each level, so that 65,000 levels would cost it a minute of
// CPU; no plant names a point with 32 levels.
const (
	maxTopic  = 1024 // bytes
	maxLevels = 32
)

// access is what one user may do.
type access struct {
	user      string // "" is anonymous
	publish   []string
	subscribe []string
}

// mayPublish says whether a message may be published to topic. Topics that begin with $ are the broker's own or reserved:
// only a filter that names the first level itself opens one, and $SYS and $share never are.
func (a *access) mayPublish(topic string) bool {
	first, _, _ := strings.Cut(topic, "/")
	if strings.EqualFold(first, "$SYS") || strings.EqualFold(first, "$share") {
		return false
	}
	return coveredByAny(a.publish, topic)
}

// maySubscribe says whether every topic that filter matches may be read. A topic is a filter that matches itself, so this
// is also the check of each delivery.
func (a *access) maySubscribe(filter string) bool {
	if inner, ok := sharedFilter(filter); ok {
		filter = inner
	}
	return coveredByAny(a.subscribe, filter)
}

func coveredByAny(allowed []string, filter string) bool {
	for _, f := range allowed {
		if covers(f, filter) {
			return true
		}
	}
	return false
}

// covers says whether allowed matches every topic that filter matches (MQTT 5, section 4.7). A wildcard at the first level
// matches no topic that begins with $.
func covers(allowed, filter string) bool {
	reserved := strings.HasPrefix(filter, "$")
	for first := true; ; first = false {
		want, wantRest, wantMore := strings.Cut(allowed, "/")
		have, haveRest, haveMore := strings.Cut(filter, "/")
		if (want == "#" || want == "+") && first && reserved {
			return false
		}
		if want == "#" {
			return true
		}
		if have == "#" || want != "+" && want != have {
			return false
		}
		if !haveMore {
			return !wantMore || wantRest == "#" // "a/#" matches "a" too
		}
		if !wantMore {
			return false
		}
		allowed, filter = wantRest, haveRest
	}
}

// sharedFilter returns what follows $share/GROUP/.
func sharedFilter(filter string) (string, bool) {
	first, rest, ok := strings.Cut(filter, "/")
	if !strings.EqualFold(first, "$share") {
		return "", false
	}
	if !ok {
		return "", true
	}
	_, inner, _ := strings.Cut(rest, "/")
	return inner, true
}

// validTopic says whether topic may be published to.
func validTopic(topic string) bool {
	return validText(topic) && !strings.ContainsAny(topic, "+#")
}

// validFilter says whether filter may be subscribed to.
func validFilter(filter string) bool {
	if !validText(filter) {
		return false
	}
	if first, rest, ok := strings.Cut(filter, "/"); strings.EqualFold(first, "$share") {
		group, inner, more := strings.Cut(rest, "/")
		if !ok || !more || group == "" || strings.ContainsAny(group, "+#") {
			return false
		}
		filter = inner
	}
	return wildcardsRight(filter)
}

func validText(s string) bool {
	return s != "" && len(s) <= maxTopic && strings.Count(s, "/") < maxLevels && utf8.ValidString(s) &&
		!strings.ContainsRune(s, 0)
}

// wildcardsRight says whether + and # stand alone in their level, and # at the end.
func wildcardsRight(filter string) bool {
	if filter == "" {
		return false
	}
	for {
		level, rest, more := strings.Cut(filter, "/")
		if len(level) > 1 && strings.ContainsAny(level, "+#") || level == "#" && more {
			return false
		}
		if !more {
			return true
		}
		filter = rest
	}
}

// aclFilterProblem says what is wrong with a filter in the config, or "".
func aclFilterProblem(filter string) string {
	switch _, shared := sharedFilter(filter); {
	case shared:
		return fmt.Sprintf("%q: rights name the topics themselves (want the filter without $share/GROUP/)", filter)
	case !validText(filter):
		return fmt.Sprintf("%q is not a topic filter (want 1 to %d bytes of text, at most %d levels)", filter, maxTopic, maxLevels)
	case !wildcardsRight(filter):
		return fmt.Sprintf("%q is not a topic filter (+ stands alone in its level, # alone in the last one)", filter)
	}
	return ""
}
