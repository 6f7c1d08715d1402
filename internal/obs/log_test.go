package obs

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func mustLevels(t *testing.T, s string) Levels {
	t.Helper()
	l, err := ParseLevels(s, []string{"a", "b", "media", "quiet", "router"})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestParseLevels(t *testing.T) {
	for in, want := range map[string]string{
		"":                               "info",
		"debug":                          "debug",
		" WARN , b=debug,a = error,":     "warn,a=error,b=debug",
		"media=debug":                    "info,media=debug",
		"router=debug,error,router=info": "error,router=info",
	} {
		if got := mustLevels(t, in).String(); got != want {
			t.Errorf("%q reads as %q, want %q", in, got, want)
		}
	}
}

func TestParseLevelsReportsEverything(t *testing.T) {
	_, err := ParseLevels("loud,=debug,media=quiet,info,warn,medai=debug", []string{"bus", "media"})
	if err == nil {
		t.Fatal("accepted")
	}
	for _, want := range []string{`"loud"`, `"=debug"`, `"quiet"`, "give one", `there is no component "medai"; there are bus, media`} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%s is not reported in:\n%v", want, err)
		}
	}
}

func TestComponentLevels(t *testing.T) {
	var out bytes.Buffer
	log, err := NewLogger(&out, TextFormat, mustLevels(t, "warn,media=debug,quiet=error"))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		log  *slog.Logger
		want []bool // debug, info, warn, error
	}{
		{log, []bool{false, false, true, true}},
		{Component(log, "other"), []bool{false, false, true, true}},
		{Component(log, "media"), []bool{true, true, true, true}},
		{Component(log, "media").With("worker", 7).WithGroup("g"), []bool{true, true, true, true}},
		{Component(log, "quiet"), []bool{false, false, false, true}},
		{Component(Component(log, "media"), "quiet"), []bool{false, false, false, true}},
		{Component(log, "media").WithGroup("g").With(ComponentKey, "quiet"), []bool{true, true, true, true}},
	} {
		for i, level := range []slog.Level{slog.LevelDebug, slog.LevelInfo, slog.LevelWarn, slog.LevelError} {
			out.Reset()
			c.log.Log(context.Background(), level, "hello")
			if got := strings.Contains(out.String(), "hello"); got != c.want[i] {
				t.Errorf("%v logged %v at %v: %q", c.want, got, level, out.String())
			}
		}
	}
}

func TestFormats(t *testing.T) {
	var out bytes.Buffer
	log, err := NewLogger(&out, JSONFormat, Levels{})
	if err != nil {
		t.Fatal(err)
	}
	Component(log, "router").Info("hello", "n", 3)
	var record struct {
		Level, Msg, Component string
		N                     int
	}
	if err := json.Unmarshal(out.Bytes(), &record); err != nil {
		t.Fatal(err)
	}
	if record.Level != "INFO" || record.Msg != "hello" || record.Component != "router" || record.N != 3 {
		t.Errorf("record %+v", record)
	}
	if _, err := NewLogger(&out, "xml", Levels{}); err == nil {
		t.Error("format xml was accepted")
	}
}

func TestThrottle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		log, err := NewLogger(&out, TextFormat, Levels{})
		if err != nil {
			t.Fatal(err)
		}
		ctx := context.Background()
		th := NewThrottle(log, time.Minute)
		lines := func(want ...string) {
			t.Helper()
			got := strings.Split(strings.TrimSpace(out.String()), "\n")
			if len(got) != len(want) {
				t.Fatalf("logged\n%s\nwant %d lines", out.String(), len(want))
			}
			for i := range want {
				if !strings.HasSuffix(got[i], want[i]) {
					t.Errorf("logged %q, want it to end in %q", got[i], want[i])
				}
			}
			out.Reset()
		}

		for i := range 100 {
			th.Log(ctx, slog.LevelWarn, "lost", "i", i)
		}
		th.Log(ctx, slog.LevelInfo, "found")
		th.Log(ctx, slog.LevelDebug, "hidden") // below the level: not even counted
		lines("msg=lost i=0", "msg=found")

		<-time.After(time.Minute) // virtual
		th.Log(ctx, slog.LevelWarn, "lost", "i", 100)
		th.Log(ctx, slog.LevelError, "lost", "i", 101)
		lines("msg=lost i=100 repeated=99")

		th.Flush(ctx)
		lines("level=ERROR msg=lost repeated=1")
		th.Flush(ctx)
		if out.Len() > 0 {
			t.Errorf("a second flush logged %q", out.String())
		}
	})
}

// TestThrottledLines: what others write line by line is one message, however the
// lines differ.
func TestThrottledLines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		log, err := NewLogger(&out, TextFormat, Levels{})
		if err != nil {
			t.Fatal(err)
		}
		th := NewThrottle(log, time.Minute)
		lines := th.LineLogger(slog.LevelWarn, "failed")
		for i := range 100 {
			lines.Printf("handshake with client %d", i)
		}
		if want := "level=WARN msg=failed error=\"handshake with client 0\"\n"; strings.Count(out.String(), "\n") != 1 || !strings.HasSuffix(out.String(), want) {
			t.Errorf("logged %q, want one line that ends in %q", &out, want)
		}
		th.Flush(t.Context())
		if !strings.Contains(out.String(), "repeated=99") {
			t.Errorf("the repeats are not counted: %q", &out)
		}
	})
}

func TestThrottleIsBounded(t *testing.T) {
	var out bytes.Buffer
	log, err := NewLogger(&out, TextFormat, Levels{})
	if err != nil {
		t.Fatal(err)
	}
	th := NewThrottle(log, time.Hour)
	for i := range 2 * maxThrottled {
		th.Log(context.Background(), slog.LevelInfo, fmt.Sprint("message ", i))
	}
	if n := len(th.mu.said); n != maxThrottled {
		t.Errorf("remembers %d messages, want %d", n, maxThrottled)
	}
	if n := strings.Count(out.String(), "\n"); n != 2*maxThrottled {
		t.Errorf("logged %d lines, want all %d", n, 2*maxThrottled)
	}
}
