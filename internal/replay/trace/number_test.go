package trace

import (
	"encoding/json"
	"strconv"
	"testing"
	"time"
)

// naiveIntegers is appendIntegers by encoding/json; ok is false for what is no
// array at all, which appendIntegers is never given.
func naiveIntegers(array []byte, limit uint64) (out []int64, wrong int, ok bool) {
	var elements []json.RawMessage
	if !json.Valid(array) || array[0] != '[' || json.Unmarshal(array, &elements) != nil {
		return nil, 0, false
	}
	for i, e := range elements {
		n, err := strconv.ParseUint(string(e), 10, 64)
		if err != nil || n > limit {
			return out, i, true
		}
		out = append(out, int64(n))
	}
	return out, -1, true
}

func TestTimes(t *testing.T) {
	for _, tc := range []struct {
		text string
		unit time.Duration
		want time.Duration
	}{
		{"0", time.Millisecond, 0},
		{"3040", time.Millisecond, 3040 * time.Millisecond},
		{"0.000001", time.Millisecond, 1},
		{"0.0000019", time.Millisecond, 1},
		{"61.114", time.Second, 61*time.Second + 114*time.Millisecond},
		{"28943983.0", time.Second, 28943983 * time.Second},
		{"1700000000.123456789", time.Second, 1700000000*time.Second + 123456789},
		{"1.5e3", time.Second, 1500 * time.Second},
		{"3162240000", time.Second, maxTime},
	} {
		if got, err := parseTime(tc.text, tc.unit); got != tc.want || err != nil {
			t.Errorf("%s of %v: %v, %v; want %v", tc.text, tc.unit, got, err, tc.want)
		}
	}
	for _, bad := range []string{"", "-1", "-0.5", "1.2.3", "NaN", "Inf", "-Inf", "0x10", "1_000", "3162240001", "1e300", "1e999", "99999999999999999999999"} {
		if got, err := parseTime(bad, time.Second); err == nil {
			t.Errorf("%q: %v", bad, got)
		}
	}
}

// TestRecent: the last recentKeys keys are there, and memory is bounded.
func TestRecent(t *testing.T) {
	var m recentMap[int]
	const sets = 2*recentKeys + 5
	for i := range sets {
		m.set(strconv.Itoa(i), i)
	}
	for i := sets - recentKeys; i < sets; i++ {
		if v, ok := m.get(strconv.Itoa(i)); !ok || v != i {
			t.Fatalf("%d: %d, %v", i, v, ok)
		}
	}
	if n := len(m.young) + len(m.old); n > 2*recentKeys {
		t.Errorf("keeps %d keys", n)
	}
	if _, ok := m.get("0"); ok {
		t.Error("never forgets")
	}
}
