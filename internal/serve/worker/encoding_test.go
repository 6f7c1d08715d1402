package worker_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"penstock/core/encode"
	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/media"
	"penstock/internal/engine"
	"penstock/internal/serve/servetest"
)

// showing is a request that shows two objects.
func showing() *engine.Request {
	req := request(4)
	req.Media = []kv.Media{{Start: 0, End: 1}, {Start: 2, End: 3}}
	req.Objects = []media.Object{{Kind: media.Image, Part: "a"}, {Kind: media.Image, Part: "b"}}
	return req
}

// frames calls the worker and returns what it sent, and when.
func (r *rig) frames(req *engine.Request) (all []engine.Delta, after []time.Duration, err error) {
	began := time.Now()
	err = r.rpc.Call(r.t.Context(), r.addr(), engine.MethodGenerate, engine.AppendRequest(nil, req), func(frame []byte) error {
		var d engine.Delta
		if err := engine.DecodeDelta(frame, &d); err != nil {
			return err
		}
		all, after = append(all, d), append(after, time.Since(began))
		return nil
	})
	return all, after, err
}

// TestRefusesMedia: a worker whose engine refuses a request for its media says which, and why, before the error.
func TestRefusesMedia(t *testing.T) {
	for name, tt := range map[string]struct {
		err  error
		want []engine.FailedObject
		code fault.Code
	}{
		"one": {
			engine.NewMediaFailure(1, encode.Corrupt, &media.Object{Part: "b"}, "cut off"),
			[]engine.FailedObject{{Index: 1, Kind: encode.Corrupt, Detail: "cut off"}},
			fault.Invalid,
		},
		"both": {
			errors.Join(engine.NewMediaFailure(1, encode.OutOfMemory, &media.Object{}, ""), engine.NewMediaFailure(0, encode.DeadlinePassed, &media.Object{}, "1s")),
			[]engine.FailedObject{{Kind: encode.DeadlinePassed, Detail: "1s"}, {Index: 1, Kind: encode.OutOfMemory}},
			fault.MediaFailed,
		},
		"no such object": {engine.NewMediaFailure(2, encode.Corrupt, &media.Object{}, ""), nil, fault.Invalid},
		"another error":  {fault.New(fault.Overloaded, "full"), nil, fault.Overloaded},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, servetest.Config{Fail: func(req *engine.Request) error {
					if len(req.Objects) == 0 {
						return nil // the canary
					}
					return tt.err
				}})
				r.start(r.engine)
				defer r.stop()
				all, _, err := r.frames(showing())
				var got []engine.FailedObject
				for _, d := range all {
					if d.Accepted || len(d.Tokens) > 0 || d.Attempt != 1 {
						t.Errorf("it sent %+v", d)
					}
					got = append(got, d.Failures...)
				}
				if fault.CodeOf(err) != tt.code || len(got) != len(tt.want) || len(all) > 1 {
					t.Fatalf("%+v, %v", all, err)
				}
				for i := range got {
					if got[i] != tt.want[i] {
						t.Errorf("failure %d is %+v, want %+v", i, got[i], tt.want[i])
					}
				}
			})
		})
	}
}

// slowEncoder encodes the media of a request for a time.
type slowEncoder struct {
	*servetest.Engine
	takes time.Duration
}

func (e *slowEncoder) Generate(ctx context.Context, req *engine.Request, sink func(*engine.Delta) error) error {
	if len(req.Objects) > 0 {
		wait := time.NewTimer(e.takes)
		defer wait.Stop()
		select {
		case <-wait.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return e.Engine.Generate(ctx, req, sink)
}

// TestEncodingIsProgress: while an engine encodes the media of a request its worker sends frames which say so, and it
// does not take the call for a stalled one, whatever it has learned of texts. An engine which never ends is given up.
func TestEncodingIsProgress(t *testing.T) {
	for name, tt := range map[string]struct {
		takes time.Duration
		beats int
	}{
		"at once":    {0, 0},
		"95 s":       {95 * time.Second, 9},
		"never ends": {time.Hour, 30},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, servetest.Config{})
				r.start(&slowEncoder{r.engine, tt.takes})
				defer r.stop()
				for range 20 { // texts are fast: what is learned of them is short
					if _, err := r.generate(t.Context(), r.addr(), request(4)); err != nil {
						t.Fatal(err)
					}
				}
				all, after, err := r.frames(showing())
				beats := 0
				for beats < len(all) && all[beats].Attempt == 0 {
					if want := time.Duration(beats+1) * 10 * time.Second; after[beats] != want {
						t.Errorf("frame %d came after %v, want %v", beats, after[beats], want)
					}
					beats++
				}
				if tt.takes == time.Hour {
					if fault.CodeOf(err) != fault.Unavailable || beats < tt.beats || beats > tt.beats+1 {
						t.Errorf("%d frames, then %v", beats, err)
					}
					return
				}
				if err != nil || beats != tt.beats || !all[beats].Accepted || len(all) != beats+6 {
					t.Errorf("%d frames, then %+v, %v", beats, all[beats:], err)
				}
				if got := r.metric(`streams_stalled_total{worker="7"}`); got != "0" {
					t.Errorf("%s streams stalled", got)
				}
			})
		})
	}
}
