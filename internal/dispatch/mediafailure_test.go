package dispatch

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"

	"penstock/core/encode"
	"penstock/core/fault"
	"penstock/core/media"
	"penstock/internal/engine"
)

// TestMediaFailures: a request which a worker refuses for its media fails with the objects and the kinds. Another
// worker is asked if it has other encoders, and no worker counts as failed for an object.
func TestMediaFailures(t *testing.T) {
	for _, tt := range []struct {
		name   string
		kind   encode.FailureKind
		index  int
		code   fault.Code
		router string
	}{
		{"corrupt", encode.Corrupt, 1, fault.Invalid, "r/1 freed 0"},
		{"out of memory", encode.OutOfMemory, 1, fault.MediaFailed, "r/1 freed 0"},
		{"deadline", encode.DeadlinePassed, 1, fault.Deadline, "r/1 freed 0"},
		{"encoder lost", encode.EncoderLost, 0, fault.Unavailable, "r/1 freed 0; failed 1 unavailable; r/2 freed 0; failed 2 unavailable"},
		{"no such object", encode.Corrupt, 2, fault.Internal, "r/1 freed 0"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, d := newFleet(2, nil)
				objects := []media.Object{{Part: "messages[0].content[0]"}, {Part: "messages[0].content[1]"}}
				f.answer = func(_ string, body []byte, recv func([]byte) error) error {
					var req engine.Request
					if err := engine.DecodeRequest(body, &req); err != nil {
						return err
					}
					refused := engine.NewMediaFailure(tt.index, tt.kind, &media.Object{Part: "p"}, "why")
					for _, frame := range [][]byte{
						engine.ProgressFrame(),
						engine.AppendDelta(nil, &engine.Delta{Attempt: req.Attempt, Failures: engine.FailedObjects([]*engine.MediaFailure{refused})}),
					} {
						if err := recv(frame); err != nil {
							return err
						}
					}
					return refused.Fault
				}
				g := &Generation{Request: engine.Request{ID: "r", Choices: 1, Objects: objects, Stop: engine.Stop{MaxTokens: 6}}}
				g.Route.ID, g.Workers = "r", f.model
				s := &sink{g: g}
				g.Sink = s
				err := d.Generate(t.Context(), g, 1)
				if got := strings.Join(f.log, "; "); got != tt.router {
					t.Errorf("the router hears %q, want %q", got, tt.router)
				}
				if strings.Contains(strings.Join(s.log, " "), ":1") {
					t.Errorf("the request was accepted: %v", s.log)
				}
				all := engine.MediaFailures(err)
				switch {
				case fault.CodeOf(err) != tt.code:
					t.Errorf("%v, want %v", err, tt.code)
				case tt.index == 2:
					if len(all) != 0 {
						t.Errorf("the failure of an object that there is not: %v", all)
					}
				case len(all) != 1 || all[0].Index != tt.index || all[0].Kind != tt.kind || !strings.Contains(all[0].Detail, "why"):
					t.Errorf("%v: %+v", err, all)
				}
				var known *fault.Error
				if !errors.As(err, &known) {
					t.Errorf("%v is no fault", err)
				}
			})
		})
	}
}
