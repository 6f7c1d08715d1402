package rpc

import (
	"bytes"
	"encoding/hex"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"penstock/core/fault"
)

var update = flag.Bool("update", false, "record the frames of this build in testdata/tcp/v1 that are not recorded yet")

// recorded are frames as version 1 has them, with what they say. The bytes are in
// testdata/tcp/v1: builds of today must read them for ever, so a file there is
// never changed. What this build writes may differ from them.
func recorded() map[string]struct {
	payload []byte
	means   any
	read    func([]byte) (any, error)
} {
	type frame = struct {
		payload []byte
		means   any
		read    func([]byte) (any, error)
	}
	client := hello{minVersion: 1, maxVersion: 1, token: "secret", frames: 64, bytes: 262144}
	server := hello{minVersion: 1, maxVersion: 3, maxBody: MaxBody, calls: 16384}
	asking := hello{minVersion: 1, maxVersion: 1, token: "secret", frames: 64, bytes: 262144, checksums: checksumsUsed}
	knowing := hello{minVersion: 1, maxVersion: 1, maxBody: MaxBody, calls: 16384, checksums: checksumsKnown}
	type call struct {
		callHeader
		body string
	}
	plain := call{callHeader{size: 4, method: "ping"}, "body"}
	traced := call{callHeader{size: 70_000, method: "generate", callMetadata: callMetadata{
		budget: 30 * time.Second,
		parent: "00-0102030405060708090a0b0c0d0e0f10-0102030405060708-01", state: "vendor=a,other=b",
	}}, "the beginning"}
	readHello := func(b []byte) (any, error) { return decodeHello(b) }
	readSums := func(b []byte) (any, error) {
		_, _, payload, _, err := framing{checksums: true}.splitFrame(b)
		return string(payload), err
	}
	readCall := func(b []byte) (any, error) {
		h, body, err := decodeCall(b)
		return call{h, string(body)}, err
	}
	readEnd := func(b []byte) (any, error) { return decodeEnd(b) }
	type credit struct{ frames, bytes uint32 }
	type start struct {
		size uint32
		part string
	}
	type goaway struct {
		last uint32
		why  fault.Error
	}
	why := &fault.Error{Code: fault.Unavailable, Message: "the server is leaving"}
	full := &fault.Error{Code: fault.Overloaded, Message: "näme", Param: "messages[0]", RetryAfter: 1500 * time.Millisecond}
	return map[string]frame{
		"hello-client":               {appendHello(nil, &client), client, readHello},
		"hello-server":               {appendHello(nil, &server), server, readHello},
		"hello-asks-for-checksums":   {appendHello(nil, &asking, helloSetting{0x1a0a, []byte("nothing")}), asking, readHello},
		"hello-knows-checksums":      {appendHello(nil, &knowing), knowing, readHello},
		"frame-with-checksums":       {framing{checksums: true}.appendFrame(nil, frameData, 1, []byte("ok"), nil), "ok", readSums},
		"frame-empty-with-checksums": {framing{checksums: true}.appendFrame(nil, frameEnd, 1, nil, nil), "", readSums},
		"hello-greased": {
			appendHello(nil, &client, helloSetting{0x1a0a, []byte("nothing")}, helloSetting{0xfafa, nil}), client, readHello,
		},
		"call":         {append(appendCallHead(nil, &plain.callHeader), plain.body...), plain, readCall},
		"call-traced":  {append(appendCallHead(nil, &traced.callHeader), traced.body...), traced, readCall},
		"end":          {nil, (*fault.Error)(nil), readEnd},
		"end-fault":    {appendFault(nil, full), full, readEnd},
		"end-draining": {appendFault(nil, &fault.Error{Code: fault.Draining}), &fault.Error{Code: fault.Draining}, readEnd},
		"credit": {appendCredit(nil, 32, 1280), credit{32, 1280}, func(b []byte) (any, error) {
			f, n, err := decodeCredit(b)
			return credit{f, n}, err
		}},
		"start": {append([]byte{0, 0, 1, 0}, "begins"...), start{65536, "begins"}, func(b []byte) (any, error) {
			n, part, err := decodeStart(b)
			return start{n, string(part)}, err
		}},
		"goaway": {appendGoaway(nil, 7, why), goaway{7, *why}, func(b []byte) (any, error) {
			last, why, err := decodeGoaway(b)
			if err != nil {
				return nil, err
			}
			return goaway{last, *why}, nil
		}},
	}
}

func TestRecordedFrames(t *testing.T) {
	frames := recorded()
	for name, f := range frames {
		file := filepath.Join("testdata", "tcp", "v1", name+".hex")
		if _, err := os.Stat(file); *update && os.IsNotExist(err) {
			if err := os.WriteFile(file, []byte(hex.EncodeToString(f.payload)+"\n"), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		payload, err := hex.DecodeString(strings.TrimSpace(string(text)))
		if err != nil {
			t.Fatal(err)
		}
		got, err := f.read(payload)
		if err != nil || !reflect.DeepEqual(got, f.means) {
			t.Errorf("%s reads as %+v, %v; it says %+v", name, got, err, f.means)
		}
		// What a later version appends to a head is passed over.
		if name == "call" {
			longer := append([]byte(nil), payload...)
			n := int(longer[0])
			longer = append(longer[:2+n:2+n], append([]byte{9, 9, 9}, longer[2+n:]...)...)
			longer[0] += 3
			if got, err := f.read(longer); err != nil || !reflect.DeepEqual(got, f.means) {
				t.Errorf("%s with more in its head reads as %+v, %v", name, got, err)
			}
		}
	}
	files, err := os.ReadDir(filepath.Join("testdata", "tcp", "v1"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if _, ok := frames[strings.TrimSuffix(f.Name(), ".hex")]; !ok {
			t.Errorf("nothing reads %s any more", f.Name())
		}
	}
}

func TestFrameHeader(t *testing.T) {
	b := appendFrameHeader(nil, frameEnd, 0x01020304, 0x0a0b0c)
	if want := []byte{0x0c, 0x0b, 0x0a, 9, 4, 3, 2, 1}; !bytes.Equal(b, want) {
		t.Errorf("the header is % x, want % x", b, want)
	}
	if typ, id, n := decodeFrameHeader(b); typ != frameEnd || id != 0x01020304 || n != 0x0a0b0c {
		t.Errorf("it reads as %d, %#x, %#x", typ, id, n)
	}
}

func TestGreaseMeansNothing(t *testing.T) {
	for range 1000 {
		if typ := randomGreaseType(); typ&0x8f != 0x8a {
			t.Fatalf("type %#x is not reserved", typ)
		}
		s := randomGreaseSetting()
		if s.key&0x0f0f != 0x0a0a {
			t.Fatalf("setting %#x is not reserved", s.key)
		}
		if h, err := decodeHello(appendHello(nil, &hello{minVersion: 1, maxVersion: 1}, s)); err != nil || h != (hello{minVersion: 1, maxVersion: 1}) {
			t.Fatalf("a greased HELLO reads as %+v, %v", h, err)
		}
	}
}

func TestVersionsAgree(t *testing.T) {
	for _, c := range []struct {
		least, most uint8
		agrees      bool
	}{{1, 1, true}, {1, 9, true}, {2, 9, false}} {
		h := hello{minVersion: c.least, maxVersion: c.most}
		if h.speaksOurVersion() != c.agrees {
			t.Errorf("versions %d to %d: %v", c.least, c.most, h.speaksOurVersion())
		}
	}
}

// FuzzTCPFrames has every decoder read the same bytes; what reads must write the
// same again.
func FuzzTCPFrames(f *testing.F) {
	for _, r := range recorded() {
		f.Add(r.payload)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if h, err := decodeHello(b); err == nil {
			if again, err := decodeHello(appendHello(nil, &h)); err != nil || again != h {
				t.Errorf("%+v came back as %+v, %v", h, again, err)
			}
		}
		if h, body, err := decodeCall(b); err == nil {
			again, body2, err := decodeCall(append(appendCallHead(nil, &h), body...))
			if err != nil || again != h || !bytes.Equal(body, body2) {
				t.Errorf("%+v came back as %+v, %v", h, again, err)
			}
		}
		if last, why, err := decodeGoaway(b); err == nil && len(why.Message) <= maxMessage && len(why.Param) <= maxParam {
			last2, why2, err := decodeGoaway(appendGoaway(nil, last, why))
			if err != nil || last2 != last || !reflect.DeepEqual(why, why2) {
				t.Errorf("%d %+v came back as %d %+v, %v", last, why, last2, why2, err)
			}
		}
		_, _, _ = decodeCredit(b)
		_, _, _ = decodeStart(b)
		_, _ = decodeEnd(b)
	})
}
