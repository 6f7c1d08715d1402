package engine

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"penstock/core/encode"
	"penstock/core/fault"
	"penstock/core/media"
)

// TestMediaFailureIsAFault: what knows nothing of media failures sees code, message and parameter.
func TestMediaFailureIsAFault(t *testing.T) {
	for kind, want := range map[encode.FailureKind]struct {
		name string
		code fault.Code
	}{
		encode.Corrupt:        {"corrupt", fault.Invalid},
		encode.OutOfMemory:    {"out_of_memory", fault.MediaFailed},
		encode.DeadlinePassed: {"deadline", fault.Deadline},
		encode.EncoderLost:    {"encoder_lost", fault.Unavailable},
		encode.SizeDiffers:    {"size_differs", fault.Invalid},
		encode.EncoderFailed:  {"encoder_failed", fault.EngineError},
		encode.Unreachable:    {"unreachable", fault.Invalid},
		200:                   {"unknown", fault.Internal},
	} {
		err := fmt.Errorf("attempt 2: %w", NewMediaFailure(1, kind, &media.Object{Part: "messages[0].content[1]"}, "no end of image"))
		f, ok := errors.AsType[*fault.Error](err)
		if !ok || f.Code != want.code || f.Param != "messages[0].content[1]" || FailureName(kind) != want.name {
			t.Errorf("%s: %+v", FailureName(kind), f)
		}
	}
}

func TestMediaFailuresOfATree(t *testing.T) {
	corrupt := WrapMediaFailure(3, encode.Corrupt, fault.InvalidParam("messages[2]", "no image"))
	late := NewMediaFailure(0, encode.DeadlinePassed, &media.Object{}, "")
	again := NewMediaFailure(3, encode.OutOfMemory, &media.Object{}, "")
	tree := fault.New(fault.Unavailable, "all failed: %w", errors.Join(corrupt, errors.New("another matter"), late, again))
	got := MediaFailures(tree)
	if len(got) != 2 || got[0] != late || got[1] != corrupt {
		t.Errorf("found %v", got)
	}
	if WrapMediaFailure(9, encode.OutOfMemory, corrupt) != corrupt {
		t.Error("a failure was wrapped again")
	}
	if other := errors.New("no fault"); WrapMediaFailure(9, encode.OutOfMemory, other) != other {
		t.Error("an error without a code became a failure")
	}
	if MediaFailures(nil) != nil || MediaFailures(errors.New("x")) != nil {
		t.Error("found failures where there are none")
	}
}

// refusedDelta has the failures of docs/format/engine.md.
func refusedDelta() *Delta {
	return &Delta{Attempt: 1, Failures: []FailedObject{{Index: 0, Kind: encode.Corrupt, Detail: "bad"}, {Index: 3, Kind: encode.OutOfMemory}}}
}

// TestFailuresOnTheWire: builds which do not know failures read a late answer: they skip the field, and there is no
// attempt beside it. Failures stand alone, are bounded, and of a kind.
func TestFailuresOnTheWire(t *testing.T) {
	frame := AppendDelta(nil, refusedDelta())
	if got := fmt.Sprintf("% x", frame); !documentedMessages(t)[got] {
		t.Errorf("the document does not have\n%s", got)
	}
	if frame[1] != deltaFailures<<2|kindBytes || int(frame[2]) != len(frame)-3 {
		t.Errorf("% x has more than the one field", frame)
	}
	var d Delta
	if err := DecodeDelta(ProgressFrame(), &d); err != nil || d.Attempt != 0 || d.Accepted || d.Failures != nil {
		t.Errorf("progress is %+v, %v", d, err)
	}
	long := &Delta{Attempt: math.MaxUint32}
	for i := range MaxObjects + 5 {
		long.Failures = append(long.Failures, FailedObject{Index: i, Kind: encode.Corrupt, Detail: strings.Repeat("é", MaxFailureDetail)})
	}
	if err := DecodeDelta(AppendDelta(nil, long), &d); err != nil || len(d.Failures) != MaxObjects || len(d.Failures[7].Detail) > MaxFailureDetail || d.Attempt != math.MaxUint32 {
		t.Errorf("%d failures, %v", len(d.Failures), err)
	}
	for name, b := range map[string][]byte{
		"an attempt beside them": {1, 4, 1, 42, 4, 10, 2, 8, 1},
		"none":                   {1, 42, 2, 4, 1},
		"no kind":                {1, 42, 3, 10, 1, 4},
		"index below 0":          {1, 42, 6, 10, 4, 4, 1, 8, 1},
		"index over the bound":   {1, 42, 7, 10, 5, 4, 0x80, 4, 8, 1},
		"a long detail":          append(append([]byte{1, 42, 0x88, 2, 10, 0x85, 2, 8, 1, 14, 0x81, 2}, make([]byte, 257)...), 0)[:12+257],
	} {
		if err := DecodeDelta(b, &d); err == nil {
			t.Errorf("%s: %+v is taken", name, d)
		}
	}
}

// TestLaterFailureKind: a kind of a later version says that the encoder failed, so that another worker is tried.
func TestLaterFailureKind(t *testing.T) {
	var d Delta
	later := &Delta{Attempt: 1, Failures: []FailedObject{{Kind: encode.Unreachable + 1}, {Index: 1, Kind: math.MaxUint8}}}
	if err := DecodeDelta(AppendDelta(nil, later), &d); err != nil || len(d.Failures) != 2 {
		t.Fatalf("%+v %v", d, err)
	}
	for _, f := range d.Failures {
		if f.Kind != encode.EncoderFailed {
			t.Errorf("%+v", f)
		}
	}
}

// TestReceivedFailures: the first failure keeps what the worker said, unless the call broke off.
func TestReceivedFailures(t *testing.T) {
	objects := []media.Object{{Part: "a"}, {Part: "b"}}
	failed := []FailedObject{{Index: 1, Kind: encode.Corrupt, Detail: "cut off"}, {Index: 0, Kind: encode.DeadlinePassed}}
	said := fault.InvalidParam("b", "no picture")
	for _, tt := range []struct {
		err  error
		want string
	}{
		{said, "no picture"},
		{fault.New(fault.Unavailable, "the connection broke"), "'b': the object cannot be decoded: cut off"},
		{errors.New("gone"), "'b': the object cannot be decoded: cut off"},
	} {
		err := ReceivedFailures(failed, objects, tt.err)
		f, _ := errors.AsType[*fault.Error](err)
		all := MediaFailures(err)
		if f.Message != tt.want || f.Param != "b" || f.Code != fault.Invalid || len(all) != 2 || all[0].Kind != encode.DeadlinePassed || all[0].Fault.Param != "a" {
			t.Errorf("%v: %+v %v", tt.err, f, all)
		}
	}
	if err := ReceivedFailures(failed[:1], objects, said); err.Error() != "no picture" {
		t.Error(err)
	}
}
