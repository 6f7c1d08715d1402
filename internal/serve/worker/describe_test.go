package worker_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"penstock/core/fault"
	"penstock/internal/engine"
	"penstock/internal/plane/disco"
	"penstock/internal/serve/servetest"
	"penstock/internal/serve/worker"
)

// TestDescribes: a worker's description equals its registration.
func TestDescribes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, servetest.Config{Step: time.Second})
		r.start(r.engine)
		ask := worker.DescribeFunc(r.rpc)
		want := r.registry.Instances()[0]
		got, err := ask(t.Context(), want.Addr)
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%v\n%s", err, diff)
		}
		if _, err := ask(t.Context(), "nowhere"); fault.CodeOf(err) != fault.Unavailable {
			t.Errorf("where nobody is: %v", err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := ask(ctx, want.Addr); err == nil {
			t.Error("asked after the end")
		}

		// A draining worker refuses, although it still serves.
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, _ = r.generate(t.Context(), want.Addr, request(4))
		}()
		synctest.Wait()
		r.cancel()
		synctest.Wait()
		if _, err := ask(t.Context(), want.Addr); fault.CodeOf(err) != fault.Draining && fault.CodeOf(err) != fault.Unavailable {
			t.Errorf("a worker that leaves: %v", err)
		}
		<-done
		r.stop()
	})
}

// TestAskRefuses: an invalid description is an error that names the address.
func TestAskRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, servetest.Config{})
		for name, frames := range map[string][]string{"nothing": nil, "garbage": {"{}"}} {
			ctx, cancel := context.WithCancel(t.Context())
			ready, served := make(chan string, 1), make(chan error, 1)
			go func() {
				served <- r.rpc.Serve(ctx, "", func(_ context.Context, method string, _ []byte, send func([]byte) error) error {
					if method != engine.MethodDescribe {
						t.Errorf("asked %s", method)
					}
					for _, f := range frames {
						if err := send([]byte(f)); err != nil {
							return err
						}
					}
					return nil
				}, func(addr string) { ready <- addr })
			}()
			if in, err := worker.DescribeFunc(r.rpc)(t.Context(), <-ready); fault.CodeOf(err) != fault.Internal || in.Kind != disco.Kind("") {
				t.Errorf("%s: %+v, %v", name, in, err)
			}
			cancel()
			<-served
		}
	})
}
