package launch

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// lifecycleRig drives a lifecycle with a clock of its own.
type lifecycleRig struct {
	lifecycle
	now time.Time
}

func newLifecycleRig(restarts int) *lifecycleRig {
	return &lifecycleRig{
		newLifecycle(&ProcessConfig{Restarts: restarts, ServeTimeout: 10 * time.Minute, StopTimeout: 20 * time.Second}),
		time.Unix(1e9, 0),
	}
}

// play plays events, separated by spaces, and returns the states and actions after each one, separated by spaces. An event
// is start, served (the caller of the process says so), stop, resume, end:CODE, wait:TIME without a check, or serving:TIME
// or silent:TIME with a check each second.
func (r *lifecycleRig) play(t *testing.T, script string) string {
	t.Helper()
	var trace []string
	for event := range strings.FieldsSeq(script) {
		name, value, _ := strings.Cut(event, ":")
		action := actionNone
		switch name {
		case "start":
			r.recordStart(r.now)
		case "served":
			r.hasServed, r.servedAt = true, r.now
		case "stop":
			action = r.requestStop(r.now)
		case "resume":
			r.recordPauseEnd()
		case "end":
			var code int
			if _, err := fmt.Sscan(value, &code); err != nil {
				t.Fatal(err)
			}
			r.recordEnd(code)
		case "serving", "silent", "wait":
			d, err := time.ParseDuration(value)
			if err != nil {
				t.Fatal(err)
			}
			if name == "wait" {
				r.now = r.now.Add(d)
				continue
			}
			for end := r.now.Add(d); r.now.Before(end); {
				r.now = r.now.Add(time.Second)
				if a := r.check(r.now, name == "serving"); a != actionNone {
					action += a
				}
			}
		default:
			t.Fatalf("there is no event %s", name)
		}
		entry := string(r.state)
		if action != actionNone {
			entry += "+" + string(action)
		}
		trace = append(trace, entry)
	}
	return strings.Join(trace, " ")
}

func TestLifecycle(t *testing.T) {
	for _, c := range []struct {
		name     string
		restarts int
		script   string
		want     string
		stopCode int
	}{
		{"an end before it served", 5, "start end:0", "running ended", 0},
		{"an end after it served", 5, "start served serving:2s end:1 resume start", "running running running pausing starting running", 0},
		{"no restarts", 0, "start served end:1", "running running ended", 0},
		{"the limit of restarts", 1, "start served end:1 resume start end:1", "running running pausing starting running ended", 0},
		{
			"a minute of serving begins a new row", 1,
			"start served end:1 resume start silent:90s serving:60s end:1",
			"running running pausing starting running running running pausing", 0,
		},
		{
			"only serving counts", 1,
			"start served end:1 resume start silent:90s serving:59s end:1",
			"running running pausing starting running running running ended", 0,
		},
		{
			"late checks count the whole time", 1,
			"start served end:1 resume start serving:1s wait:58s serving:1s end:1",
			"running running pausing starting running running running pausing", 0,
		},
		{
			"each process has its own served time", 1,
			"start served serving:50s end:1 resume start serving:50s end:1",
			"running running running pausing starting running running ended", 0,
		},
		{"a stop", 5, "start served stop end:0", "running running stopping+SIGTERM ended", 0},
		{"a stop before it served", 5, "start stop end:9", "running stopping+SIGTERM ended", 9},
		{"a stop and an end by SIGTERM", 5, "start stop end:143", "running stopping+SIGTERM ended", 0},
		{"a stop which it ignores", 5, "start stop silent:19s silent:1s silent:1h end:137", "running stopping+SIGTERM stopping stopping+SIGKILL stopping ended", 137},
		{"a stop while pausing", 5, "start served end:7 stop resume", "running running pausing ended ended", 0},
		{"a stop before the start", 5, "stop", "ended", 0},
		{"a stall", 5, "start served silent:599s silent:1s end:143", "running running running stopping+SIGTERM pausing", 0},
		{"a stall which ignores SIGTERM", 0, "start served silent:10m silent:20s end:137", "running running stopping+SIGTERM stopping+SIGKILL ended", 0},
		{"a stall after a restart", 5, "start served end:1 resume start silent:10m", "running running pausing starting running stopping+SIGTERM", 0},
		{"no stall: it serves now and then", 5, "start served silent:599s serving:1s silent:599s", "running running running running running", 0},
		{"no stall before it served", 5, "start silent:1h", "running running", 0},
		{"a stop of a stalled process", 5, "start served silent:10m stop end:143", "running running stopping+SIGTERM stopping ended", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newLifecycleRig(c.restarts)
			if got := r.play(t, c.script); got != c.want {
				t.Errorf("%s\n%s, want\n%s", c.script, got, c.want)
			}
			if r.stopCode != c.stopCode {
				t.Errorf("stop code %d, want %d", r.stopCode, c.stopCode)
			}
		})
	}
}

// TestLifecyclePauses: the pauses double, up to a bound, and are short again after a minute of serving.
func TestLifecyclePauses(t *testing.T) {
	r := newLifecycleRig(100)
	r.play(t, "start served end:1")
	for _, least := range []time.Duration{1, 2, 4, 8, 16, 30, 30} {
		if least *= time.Second; r.pause < least || r.pause > least*3/2 {
			t.Errorf("a pause of %v, want %v and up to a half more", r.pause, least)
		}
		r.play(t, "resume start serving:59s end:1")
	}
	r.play(t, "resume start serving:60s end:1")
	if r.pause > minPause*3/2 {
		t.Errorf("a pause of %v after a minute of serving", r.pause)
	}
}
