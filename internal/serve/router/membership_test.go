package router_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"penstock/core/kv"
	"penstock/internal/engine"
	"penstock/internal/plane/disco"
	"penstock/internal/serve/router"
	"penstock/internal/serve/servetest"
)

// listing is a worker as discovery has it.
func listing(t *testing.T, id kv.WorkerID, epoch uint64) disco.Instance {
	t.Helper()
	meta, err := engine.EncodeCard(servetest.ModelCard("m"))
	if err != nil {
		t.Fatal(err)
	}
	return disco.Instance{
		Kind: disco.KindWorker, ID: id, Epoch: epoch, Namespace: "penstock", Component: "backend",
		Addr: "mem://7", Host: "h7", Name: "n7", Meta: meta,
	}
}

// TestRoster: the log says of each worker once that it joined and left, and both for a later epoch.
func TestRoster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		defer c.startRouter(router.Config{})()
		see := func(want ...string) {
			t.Helper()
			synctest.Wait()
			var got []string
			for line := range strings.Lines(c.said.String()) {
				if _, line, ok := strings.Cut(line, "msg=\"worker "); ok {
					got = append(got, strings.TrimSpace(strings.Replace(line, "\" component=router", "", 1)))
				}
			}
			c.said.Reset()
			if strings.Join(got, "\n") != strings.Join(want, "\n") {
				t.Errorf("the log says\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
		}
		const of = " worker=7 name=n7 host=h7 addr=mem://7 model=m"
		in := listing(t, 7, 1)
		c.registry.Set(in)
		see("joined" + of)
		in.Unconfirmed = true
		c.registry.Set(in)
		see()
		in = listing(t, 7, 2)
		c.registry.Set(in)
		see("left"+of, "joined"+of)
		c.registry.Delete(in)
		see("left" + of)
		c.registry.Set(in)
		see("joined" + of)
	})
}

// TestRosterIsBounded: of hundreds that join the log names some and counts the rest.
func TestRosterIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		defer c.startRouter(router.Config{})()
		for id := range kv.WorkerID(300) {
			c.registry.Set(listing(t, id+1, 1))
			synctest.Wait()
		}
		<-time.After(12 * time.Second)
		synctest.Wait()
		if n := strings.Count(c.said.String(), "worker joined"); n != 32 {
			t.Errorf("%d workers are named, want 32", n)
		}
		if !strings.Contains(c.said.String(), `msg="more workers joined or left" component=router joined=268 left=0`) {
			t.Errorf("the others are not counted: %s", c.said.String())
		}
	})
}
