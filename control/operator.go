package control

import (
	"fmt"
	"time"
)

// credentialNotice is how long before its end a credential is a problem.
const credentialNotice = 30 * 24 * time.Hour

// removedProblems reports uplinks that are gone from the config and keep records on the disk.
func removedProblems(list []Problem, removed []Removed) []Problem {
	for _, r := range removed {
		text := fmt.Sprintf("It is not in the configuration any more, and %s (%s) of stream %s are kept for it.",
			CountOf(r.Backlog.Records, "record"), BytesText(r.Backlog.Bytes), r.Stream)
		if r.Backlog.Records == 0 {
			text = "It is not in the configuration any more, and each new record of stream " + r.Stream + " is kept for it."
		}
		list = append(list, Problem{
			Warning, "uplink " + r.Uplink, text,
			fmt.Sprintf("Put it back, or give them up: edge-gateway release %s %s", r.Uplink, r.Stream),
		})
	}
	return list
}

// credentialProblems reports files that end soon or cannot be read.
func credentialProblems(list []Problem, now time.Time, credentials []Credential) []Problem {
	for _, c := range credentials {
		where := "uplink " + c.Uplink
		if c.Error != "" {
			list = append(list, Problem{
				Warning, where, sentence("Its "+c.Key+" cannot be read", c.Error),
				"What was read before is used on. Put the file right; the gateway takes it by itself.",
			})
		}
		left := c.Expires.Sub(now)
		switch {
		case c.Expires.IsZero() || left > credentialNotice:
		case left <= 0:
			list = append(list, Problem{
				Error, where, fmt.Sprintf("Its %s (%s) expired %s ago.", c.Key, c.File, DurationText(-left)),
				"Renew the file; the gateway takes it by itself. Records wait in the log until then.",
			})
		default:
			list = append(list, Problem{
				Warning, where, fmt.Sprintf("Its %s (%s) expires in %s.", c.Key, c.File, DurationText(left)),
				"Renew the file; the gateway takes it by itself, without a restart.",
			})
		}
	}
	return list
}
