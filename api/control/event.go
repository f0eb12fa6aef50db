package control

import (
	"cmp"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// An EventJSON is an event in the form in which agents and `muster events --json` print it.
type EventJSON struct {
	Time     time.Time         `json:"time"`
	Agent    string            `json:"agent"`
	Sequence uint64            `json:"sequence"`
	Kind     string            `json:"kind"`
	What     string            `json:"what"`
	Sentence string            `json:"sentence"` // for people; the other keys are for programs
	Who      string            `json:"who,omitempty"`
	From     string            `json:"from,omitempty"`
	Details  map[string]string `json:"details,omitempty"`
}

// JSON returns e in the form in which it is printed. The caller owns it.
func (e *Event) JSON() EventJSON {
	out := EventJSON{
		Time: time.Unix(0, e.GetTimeUnixNs()).UTC(), Agent: e.GetAgent(), Sequence: e.GetSequence(),
		Kind: e.GetKind(), What: e.GetWhat(), Who: e.GetWho(), From: e.GetFrom(),
		Sentence: e.Sentence(),
		Details:  map[string]string{},
	}
	for _, d := range e.GetDetails() {
		out.Details[d.GetKey()] = d.GetValue()
	}
	return out
}

// percentText writes a share as a person would: "31 %", "5 %", "3.1 %", "0.04 %", "0.0 %".
func percentText(share float64) string {
	switch percent := 100 * share; {
	case math.Abs(percent) >= 9.95 || percent != 0 && percent == math.Round(percent):
		return fmt.Sprintf("%.0f %%", percent)
	case percent == 0 || math.Abs(percent) >= .095:
		return fmt.Sprintf("%.1f %%", percent)
	default:
		return fmt.Sprintf("%.1g %%", percent)
	}
}

// timeText writes a duration as a person would: "2 h", "3 min", "1.2 s", "350 ms".
func timeText(d time.Duration) string {
	scaled := func(unit time.Duration, name string) string {
		x, digits := float64(d)/float64(unit), 0
		if math.Abs(x) < 9.95 {
			digits = 1
		}
		return strings.TrimSuffix(strconv.FormatFloat(x, 'f', digits, 64), ".0") + " " + name
	}
	switch size := d.Abs(); {
	case size >= 90*time.Minute:
		return scaled(time.Hour, "h")
	case size >= 90*time.Second:
		return scaled(time.Minute, "min")
	case size >= time.Second:
		return scaled(time.Second, "s")
	case size >= time.Millisecond || size == 0:
		return scaled(time.Millisecond, "ms")
	default:
		return scaled(time.Microsecond, "µs")
	}
}

func ofNumber(value string, form func(float64) string) string {
	x, err := strconv.ParseFloat(value, 64)
	if err != nil {
		return ""
	}
	return form(x)
}

func inUnit(value string, unit time.Duration) string {
	return ofNumber(value, func(x float64) string {
		return timeText(time.Duration(x * float64(unit)))
	})
}

// countText writes a number of things: "1 lane", "2 queries", or "lanes" if it has no number.
func countText(value, noun string) string {
	switch stem, ok := strings.CutSuffix(noun, "y"); {
	case value == "1":
		return "1 " + noun
	case ok:
		return strings.TrimSpace(value + " " + stem + "ies")
	default:
		return strings.TrimSpace(value + " " + noun + "s")
	}
}

func durationText(value string) string {
	d, err := time.ParseDuration(value)
	if err != nil {
		return ""
	}
	return timeText(d)
}

// releaseText makes a clause of why a release was made; it says what became of each version.
func releaseText(e *Event, why string) string {
	is := func(key string) string { return "version " + e.detail(key) }
	compared := is("current")
	switch {
	case strings.HasPrefix(why, "promoted"):
		why, compared = is("current")+" was "+why, is("previous")
	case strings.HasPrefix(why, "rolled back"):
		why = is("canary") + " was " + why
	case strings.HasPrefix(why, "on trial"):
		share := ofNumber(e.detail("share"), percentText)
		why = is("canary") + " is on trial with " + share + " of the queries" +
			strings.TrimPrefix(why, "on trial")
	default:
		why = is("canary") + " is " + why
	}
	if strings.HasSuffix(compared, " ") { // an agent of before does not say which
		return why
	}
	return strings.ReplaceAll(why, "the current version's", compared+"'s")
}

// detail returns the value of a detail, or "".
func (e *Event) detail(key string) string {
	for _, d := range e.GetDetails() {
		if d.GetKey() == key {
			return d.GetValue()
		}
	}
	return ""
}

// client names who asked for what the event says, and from where; "" if nobody did.
func (e *Event) client() string {
	name := e.GetWho()
	if name == "" && e.GetFrom() != "" {
		name = "an unnamed client"
	}
	if e.GetFrom() != "" {
		name += " at " + e.GetFrom()
	}
	return name
}

// Sentence says what happened. An event that this version does not know is shown by its kind, its
// words and its details.
func (e *Event) Sentence() string {
	pattern, ok := sentences[e.GetKind()][e.GetWhat()]
	if !ok {
		return e.listDetails()
	}
	text := e.fill(pattern)
	if err := e.detail("error"); err != "" && !strings.Contains(pattern, "{error}") {
		text += ", which failed: " + err
	}
	return text
}

func (e *Event) listDetails() string {
	var b strings.Builder
	b.WriteString(e.GetKind() + ": " + e.GetWhat())
	for _, d := range e.GetDetails() {
		value := d.GetValue()
		if value == "" || strings.ContainsAny(value, ` ="`) {
			value = strconv.Quote(value)
		}
		fmt.Fprintf(&b, " %s=%s", d.GetKey(), value)
	}
	if who := e.client(); who != "" {
		b.WriteString(", by " + who)
	}
	return b.String()
}

// fill writes a pattern of sentences with the event's details.
func (e *Event) fill(pattern string) string {
	var b strings.Builder
	for pattern != "" {
		at := strings.IndexAny(pattern, "{[")
		if at < 0 {
			break
		}
		b.WriteString(pattern[:at])
		end := at + strings.IndexByte(pattern[at:], pattern[at]+2) // "{" and "}", "[" and "]"
		if part := pattern[at+1 : end]; pattern[at] == '{' {
			b.WriteString(e.value(part))
		} else {
			b.WriteString(e.optional(part))
		}
		pattern = pattern[end+1:]
	}
	return b.String() + pattern
}

func (e *Event) optional(part string) string {
	if condition, texts, ok := strings.Cut(part, "?"); ok {
		key, value, _ := strings.Cut(condition, "=")
		then, otherwise, _ := strings.Cut(texts, "|")
		if e.detail(key) == value {
			return e.fill(then)
		}
		return e.fill(otherwise)
	}
	for _, after := range strings.Split(part, "{")[1:] {
		key, _, _ := strings.Cut(after, "}")
		key, _, _ = strings.Cut(key, ":")
		if value := e.detail(key); value == "" || value == "0" {
			return ""
		}
	}
	return e.fill(part)
}

func (e *Event) value(part string) string {
	switch part {
	case "agent@":
		return e.GetAgent()
	case "who@":
		if who := e.client(); who != "" {
			return who
		}
		return "somebody"
	}
	key, form, _ := strings.Cut(part, ":")
	value := e.detail(key)
	return cmp.Or(e.writeAs(form, value), value)
}

// writeAs writes a detail for people. It returns "" for a value that it does not understand.
func (e *Event) writeAs(form, value string) string {
	form, noun, _ := strings.Cut(form, " ")
	switch form {
	case "count":
		return countText(value, noun)
	case "list":
		return strings.Join(strings.Fields(strings.Trim(value, "[]")), ", ")
	case "ms":
		return inUnit(value, time.Millisecond)
	case "s":
		return inUnit(value, time.Second)
	case "duration":
		return durationText(value)
	case "percent":
		return ofNumber(value, percentText)
	case "usd":
		return ofNumber(value, func(x float64) string {
			if 0 < x && x < .1 {
				return fmt.Sprintf("$%.4f", x) // the cheapest instance types cost $0.0042/hr
			}
			return fmt.Sprintf("$%.2f", x)
		})
	case "number":
		return ofNumber(value, func(x float64) string {
			return strconv.FormatFloat(x, 'g', 3, 64)
		})
	case "release":
		return releaseText(e, value)
	}
	if whole, decimals, ok := strings.Cut(value, "."); ok && len(whole)+len(decimals) > 7 {
		return e.writeAs("number", value) // a float for programs, such as 0.30000000000000004
	}
	return ""
}
