package rpc

import (
	"bytes"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"penstock/core/fault"
)

// recorded are the messages of version 1 in testdata, as this version decodes and encodes them;
// messages of a later version are only decoded.
func recordedCalls() map[string]*natsCallMsg {
	trace := callMetadata{budget: 2500 * time.Millisecond, parent: "00-0102-0304-01", state: "v=a"}
	return map[string]*natsCallMsg{
		"call":          {method: "generate", size: 4, body: []byte("body")},
		"call-traced":   {callMetadata: trace, method: "ping", body: []byte{}},
		"call-stored":   {callMetadata: callMetadata{budget: time.Millisecond}, method: "generate", size: 4 << 20, object: "OBJECT7", body: []byte{}},
		"call-of-later": {method: "ping", size: 1, body: []byte("b")}, // its header is longer
	}
}

func recordedAnswers() map[string]natsAnswer {
	return map[string]natsAnswer{
		"frame":       {typ: natsFrameType, seq: 1, data: []byte("hello")},
		"frame-part":  {typ: natsFrameType, seq: 2, more: true, data: []byte("part")},
		"frame-flags": {typ: natsFrameType, seq: 3, data: []byte{}}, // of a later version
		"end":         {typ: natsEndType, seq: 4},
		"end-fault": {typ: natsEndType, seq: 5, end: &fault.Error{
			Code: fault.Overloaded, Message: "queue full", Param: "p", RetryAfter: 1500 * time.Millisecond,
		}},
		"alive":          {typ: natsAliveType, seq: 6},
		"alive-of-later": {typ: natsAliveType, seq: 7}, // it has more bytes
		"gone":           {typ: natsGoneType},
		"unknown":        {typ: 0x90},
	}
}

func TestNATSMessagesAreReadForEver(t *testing.T) {
	g := golden(t, "nats-v1.txt")
	for name, want := range recordedCalls() {
		if got, err := decodeNATSCall(g[name]); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s reads as %+v, %v, want %+v", name, got, err, want)
		}
	}
	for name, want := range recordedAnswers() {
		if got, err := decodeNATSAnswer(g[name]); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s reads as %+v, %v, want %+v", name, got, err, want)
		}
	}
	if have, want := len(g), len(recordedCalls())+len(recordedAnswers()); have != want {
		t.Errorf("%d messages are recorded, %d are read", have, want)
	}
}

func appendAnswer(dst []byte, a natsAnswer) []byte {
	switch a.typ {
	case natsFrameType:
		flags := byte(0)
		if a.more {
			flags = natsMore
		}
		return append(appendNATSFrame(dst, flags, a.seq), a.data...)
	case natsEndType:
		return appendNATSEnd(dst, a.seq, a.end)
	case natsAliveType:
		return appendNATSSeq(dst, a.typ, a.seq)
	}
	return append(dst, a.typ)
}

func TestNATSMessagesAsRecorded(t *testing.T) {
	g := golden(t, "nats-v1.txt")
	for name, m := range recordedCalls() {
		if got := appendNATSCall(nil, m); !strings.HasSuffix(name, "-of-later") && !bytes.Equal(got, g[name]) {
			t.Errorf("%s is written as %x", name, got)
		}
	}
	for _, name := range []string{"frame", "frame-part", "end", "end-fault", "alive", "gone", "unknown"} {
		if got := appendAnswer(nil, recordedAnswers()[name]); !bytes.Equal(got, g[name]) {
			t.Errorf("%s is written as %x", name, got)
		}
	}
	greased := 0
	for range 1000 {
		if b := randomNATSGrease(); b != nil {
			greased++
			if a, err := decodeNATSAnswer(b); err != nil || a.typ < natsGrease {
				t.Errorf("%x reads as %+v, %v", b, a, err)
			}
		}
	}
	if greased == 0 {
		t.Error("there is no grease")
	}
}

func FuzzNATSCall(f *testing.F) {
	for _, b := range golden(f, "nats-v1.txt") {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := decodeNATSCall(b)
		if err != nil {
			if c := fault.CodeOf(err); c != fault.Invalid && c != fault.TooLarge && c != fault.Unimplemented {
				t.Errorf("an error of code %v: %v", c, err)
			}
			return
		}
		again, err := decodeNATSCall(appendNATSCall(nil, m))
		if err != nil || !reflect.DeepEqual(m, again) {
			t.Errorf("%+v came back as %+v, %v", m, again, err)
		}
	})
}

func FuzzNATSAnswer(f *testing.F) {
	for _, b := range golden(f, "nats-v1.txt") {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		a, err := decodeNATSAnswer(b)
		if err != nil {
			return
		}
		var long *fault.Error
		if errors.As(a.end, &long) && (len(long.Message) > maxMessage || len(long.Param) > maxParam) {
			return // broken characters grew when they were mended
		}
		again, err := decodeNATSAnswer(appendAnswer(nil, a))
		if err != nil || !reflect.DeepEqual(a, again) {
			t.Errorf("%+v came back as %+v, %v", a, again, err)
		}
	})
}
