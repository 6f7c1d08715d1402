package fleet

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestMetrics(t *testing.T) {
	const text = `# HELP a b
# TYPE a gauge
a{worker="1",quantity="running"} 3
a{worker="2",quantity="running"} 4
a{worker="2",quantity="waiting"} 5
ab 7
c{text="with space and }"} +Inf
`
	m, err := parseMetrics(strings.NewReader(text))
	if err != nil || len(m) != 5 {
		t.Fatalf("%v, %v", m, err)
	}
	if m.SumOf("a") != 12 || m.SumOf("a", `quantity="running"`) != 7 || m.SumOf("a", `"2"`, `"running"`) != 4 || m.SumOf("ab") != 7 || m.SumOf("none") != 0 {
		t.Errorf("sums of %v", m)
	}
	if _, err := parseMetrics(strings.NewReader("a one\n")); err == nil {
		t.Error("a value that is no number")
	}
}

func TestUntil(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		no := errors.New("not yet")
		n := 0
		took, err := WaitUntil(t.Context(), time.Second, time.Minute, func(context.Context) error {
			if n++; n < 4 {
				return no
			}
			return nil
		})
		if took != 3*time.Second || err != nil {
			t.Errorf("%v, %v", took, err)
		}
		took, err = WaitUntil(t.Context(), time.Second, 10*time.Second, func(ctx context.Context) error {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return no
		})
		if took != 10*time.Second || !errors.Is(err, no) {
			t.Errorf("%v, %v: the reason is what was asked", took, err)
		}
	})
}

func TestDurations(t *testing.T) {
	var d Durations
	if d.Percentile(50) != 0 || d.Max() != 0 {
		t.Error("of none")
	}
	for i := 1; i <= 200; i++ {
		d.Add(time.Duration(i))
	}
	if d.Percentile(50) != 100 || d.Percentile(99) != 198 || d.Percentile(100) != 200 || d.Percentile(0) != 1 {
		t.Errorf("%v", &d)
	}
	for range 2 * maxKept {
		d.Add(time.Hour)
	}
	if len(d.kept) != maxKept || d.Count() != 200+2*maxKept || d.Percentile(50) != time.Hour {
		t.Errorf("%v, %d kept", &d, len(d.kept))
	}
}

func TestTally(t *testing.T) {
	known := KnownRequest{Request: Request{Name: "k"}, Want: Answer{Choices: []Choice{{Text: "ab", Finish: "stop"}}, Output: 2}}
	right := Outcome{Answer: known.Want, Workers: []uint64{1, 2}, First: time.Second}
	twice := Outcome{Answer: Answer{Choices: []Choice{{Text: "aab", Finish: "stop"}}, Output: 3}}
	lost := errors.New("lost")
	var a, b OutcomeCounts
	a.addOutcome(&right, &known, false)
	a.addOutcome(&twice, &known, false)
	a.addOutcome(&Outcome{Err: lost}, &known, false)
	b.addOutcome(&Outcome{Err: lost}, &known, true)
	b.addOutcome(&Outcome{Err: lost, Status: 503, RetryAfter: "1"}, &known, false)
	b.addOutcome(&Outcome{Err: lost, Status: 503}, &known, false) // when to come again is not said
	a.MergeCounts(&b)
	if a.Sent != 6 || a.Right != 1 || a.Duplicated != 1 || a.DuplicatedTokens != 1 || a.Failed != 2 || a.Left != 1 || a.Refused != 1 || a.Moved != 1 || a.CountWrong() != 1 {
		t.Errorf("%+v", a)
	}
	if a.Errors["lost"] != 3 || len(a.Differences) != 1 || a.First.Count() != 1 {
		t.Errorf("%+v", a)
	}
}
