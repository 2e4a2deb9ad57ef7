package pipeline

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// Limits of a topic, as the local broker keeps them for what is published.
const (
	MaxTopicBytes  = 1 << 10
	MaxTopicLevels = 32
)

// Match reports whether an MQTT topic filter takes a topic: "+" stands for one level, "#" at the end for any number of
// levels, its parent included (MQTT 5, section 4.7). A filter that begins with a wildcard does not match a topic that
// begins with "$".
func Match(filter, topic string) bool {
	if topic != "" && topic[0] == '$' && filter != "" && filter[0] != '$' {
		return false
	}
	for {
		f, filterRest, filterMore := strings.Cut(filter, "/")
		if f == "#" {
			return true
		}
		t, topicRest, topicMore := strings.Cut(topic, "/")
		if f != "+" && f != t {
			return false
		}
		if !topicMore {
			return !filterMore || filterRest == "#"
		}
		if !filterMore {
			return false
		}
		filter, topic = filterRest, topicRest
	}
}

// CheckFilter says what is wrong with a topic filter, nil if nothing is.
func CheckFilter(filter string) error {
	if err := checkTopic(filter); err != nil {
		return err
	}
	levels := strings.Split(filter, "/")
	for i, level := range levels {
		switch {
		case level == "#" && i < len(levels)-1:
			return fmt.Errorf("%q: \"#\" may only be the last level", filter)
		case len(level) > 1 && strings.ContainsAny(level, "+#"):
			return fmt.Errorf("%q: a wildcard must be a whole level, as in \"a/+/b\" or \"a/#\"", filter)
		}
	}
	return nil
}

// CheckTopic says what is wrong with the topic of a message, nil if nothing is.
func CheckTopic(topic string) error {
	if strings.ContainsAny(topic, "+#") {
		return fmt.Errorf("%q: a topic to publish to has no wildcards", topic)
	}
	return checkTopic(topic)
}

func checkTopic(topic string) error {
	switch {
	case topic == "":
		return fmt.Errorf("a topic must not be empty")
	case len(topic) > MaxTopicBytes:
		return fmt.Errorf("topic of %d bytes is too long (want at most %d)", len(topic), MaxTopicBytes)
	case strings.Count(topic, "/") >= MaxTopicLevels:
		return fmt.Errorf("topic has more than %d levels", MaxTopicLevels)
	case !utf8.ValidString(topic) || strings.ContainsRune(topic, 0):
		return fmt.Errorf("topic is not valid UTF-8 text without NUL")
	}
	return nil
}

// anyMatch reports whether one of the filters takes the topic. No filters take every topic.
func anyMatch(filters []string, topic string) bool {
	for _, f := range filters {
		if Match(f, topic) {
			return true
		}
	}
	return len(filters) == 0
}
