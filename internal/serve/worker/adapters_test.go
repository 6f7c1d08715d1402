package worker_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"penstock/core/fault"
	"penstock/internal/engine"
	"penstock/internal/serve/servetest"
)

// TestAdaptersChange: when the engine's adapters change, the worker's registration changes within the
// same epoch. Requests for a removed adapter still reach the engine, which refuses them.
func TestAdaptersChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, servetest.Config{})
		eng := &worried{Engine: r.engine, lists: make(chan []string)}
		r.start(eng)
		defer r.stop()
		listed := func() string {
			synctest.Wait()
			in := r.registry.Instances()[0]
			card, err := engine.DecodeCard(in.Meta)
			if err != nil {
				t.Fatal(err)
			}
			var said engine.Description
			err = r.rpc.Call(t.Context(), r.addr(), engine.MethodDescribe, nil, func(frame []byte) (err error) {
				said, err = engine.DecodeDescription(frame)
				return err
			})
			if err != nil || !slices.Equal(said.Card, in.Meta) {
				t.Errorf("described as %s, registered as %s (%v)", said.Card, in.Meta, err)
			}
			return fmt.Sprint(in.Epoch, card.Adapters)
		}
		const served = fault.Code(255)
		ask := func(model string) fault.Code {
			req := request(9)
			req.Model, req.Salt.LoRA = model, model
			_, err := r.generate(t.Context(), r.addr(), req)
			if err == nil {
				return served
			}
			return fault.CodeOf(err)
		}
		if got := listed(); got != "3 []" || ask("law") != fault.NotFound {
			t.Errorf("%s, law is served", got)
		}
		eng.lists <- []string{"law", "med"}
		if got := listed(); got != "3 [law med]" || ask("law") != served || ask("m") != served || ask("other") != fault.NotFound {
			t.Errorf("%s, or law is not served", got)
		}
		eng.lists <- []string{"not", "ascending"}
		if got := listed(); got != "3 [law med]" || !strings.Contains(r.log.String(), "make no model card") {
			t.Errorf("%s, and the log says %s", got, r.log.String())
		}
		eng.lists <- []string{"med"}
		if got := listed(); got != "3 [med]" || ask("law") != served {
			t.Errorf("%s, or law's last request was not handed on", got)
		}
		<-time.After(time.Second)
	})
}

// TestMiscountsChange: the registration shows the kinds of media that the engine counts differently,
// beside its adapters, and drops them again.
func TestMiscountsChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, servetest.Config{})
		eng := &worried{Engine: r.engine, lists: make(chan []string), kinds: make(chan []string)}
		r.start(eng)
		defer r.stop()
		listed := func() string {
			synctest.Wait()
			card, err := engine.DecodeCard(r.registry.Instances()[0].Meta)
			if err != nil {
				t.Fatal(err)
			}
			return fmt.Sprint(card.Adapters, card.MiscountedMedia)
		}
		for _, step := range []struct {
			to   chan []string
			what []string
			want string
		}{
			{eng.kinds, []string{"video"}, "[] [video]"},
			{eng.lists, []string{"law"}, "[law] [video]"},
			{eng.kinds, []string{"audio", "video"}, "[law] [audio video]"},
			{eng.kinds, []string{"video", "audio"}, "[law] [audio video]"}, // no card
			{eng.kinds, nil, "[law] []"},
		} {
			step.to <- step.what
			if got := listed(); got != step.want {
				t.Errorf("%v: %s, want %s", step.what, got, step.want)
			}
		}
	})
}
