//go:build linux

package embregion

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"penstock/internal/backoff"
)

var killRounds = flag.Int("region-kills", 12, "rounds of TestKilled, in each of which an owner and a reader are killed")

// childRole names the variable which makes this binary an owner or a reader in a process of its own.
const childRole = "PENSTOCK_EMBREGION_CHILD"

const (
	childKeys     = 24
	childCapacity = 1 << 20 // less than its keys take
)

// runChild is an owner or a reader of the region of "reader ADDRESS", until it is killed or its input ends. An owner
// changes its entries all the time. Both answer each line of their input with what they have done so far: an owner with
// "changes refused", a reader with "hits wrong".
func runChild(role string) {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	var mu sync.Mutex
	var done, bad int
	count := func(ok bool) {
		mu.Lock()
		defer mu.Unlock()
		if done++; !ok {
			bad++
		}
	}
	kind, addr, _ := strings.Cut(role, " ")
	seed := uint64(os.Getpid())
	rng := rand.New(rand.NewPCG(seed, seed))
	switch kind {
	case "owner":
		o, err := NewOwner(OwnerConfig{})
		if err != nil {
			panic(err)
		}
		running.Go(func() { _ = o.Run(ctx) }) // readers notice if it fails
		running.Go(func() {
			for s := newStore(o, childCapacity); ctx.Err() == nil; {
				if n := rng.IntN(childKeys); rng.IntN(8) == 0 {
					s.remove(n, "")
				} else {
					count(s.put(n, ""))
				}
			}
		})
		fmt.Println(o.Addr())
	case "reader":
		r := NewReaders(ReadersConfig{})
		r.SetRegions([]string{addr})
		running.Go(func() { _ = r.Run(ctx) }) // it says nothing but that ctx has ended
		running.Go(func() {
			for one := (&reader{of: r, addrs: []string{addr}}); ctx.Err() == nil; {
				if hit, err := one.read(rng.IntN(childKeys), ""); hit {
					count(err == nil)
				}
			}
		})
	}
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		mu.Lock()
		fmt.Println(done, bad)
		mu.Unlock()
	}
}

// child is a process of this binary.
type child struct {
	t   *testing.T
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Scanner
}

func startChild(t *testing.T, role string) *child {
	t.Helper()
	c := &child{t: t, cmd: exec.Command(os.Args[0])}
	c.cmd.Env = append(os.Environ(), childRole+"="+role)
	c.cmd.Stderr = os.Stderr
	var err error
	if c.in, err = c.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	c.out = bufio.NewScanner(out)
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return c
}

func (c *child) line() string {
	c.t.Helper()
	if !c.out.Scan() {
		c.t.Fatalf("the child has ended: %v", c.out.Err())
	}
	return c.out.Text()
}

// counts asks the child what it has done.
func (c *child) counts() (done, bad int) {
	c.t.Helper()
	if _, err := io.WriteString(c.in, "\n"); err != nil {
		c.t.Fatal(err)
	}
	if _, err := fmt.Sscan(c.line(), &done, &bad); err != nil {
		c.t.Fatal(err)
	}
	return done, bad
}

// awaitProgress returns when the child has done n things more.
func (c *child) awaitProgress(n int) (bad int) {
	c.t.Helper()
	first, _ := c.counts()
	if err := backoff.Poll(c.t.Context(), time.Millisecond, func() bool {
		done, wrong := c.counts()
		bad = wrong
		return done >= first+n
	}); err != nil {
		c.t.Fatal(err)
	}
	return bad
}

func (c *child) signal(s syscall.Signal) {
	c.t.Helper()
	if err := c.cmd.Process.Signal(s); err != nil {
		c.t.Fatal(err)
	}
}

func (c *child) kill() {
	_ = c.cmd.Process.Kill()
	_ = c.in.Close()
	_ = c.cmd.Wait() // it was killed
}

// leftovers are what regions could leave in this process and on this host.
type leftovers struct {
	files, regions int
	shm, memory    string
}

func findLeftovers(t *testing.T) (l leftovers) {
	t.Helper()
	read := func(name string) string {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	l.files, l.regions = len(fds), strings.Count(read("/proc/self/maps"), "memfd:penstock")
	names, err := filepath.Glob("/dev/shm/penstock*")
	if err != nil {
		t.Fatal(err)
	}
	l.shm = strings.Join(names, " ")
	for line := range strings.Lines(read("/proc/self/status")) {
		if strings.HasPrefix(line, "RssShmem:") {
			l.memory = line
		}
	}
	return l
}

// TestKilled: owners and readers in processes of their own are paused and killed at random while they write and read. No
// reader, there or here, gets rows which are not those of the key; a paused owner's entries can be read, a paused or dead
// reader does not keep the owner from going on, and nothing is left behind.
func TestKilled(t *testing.T) {
	before := findLeftovers(t)
	r := NewReaders(ReadersConfig{})
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = r.Run(ctx) }) // it says nothing but that ctx has ended
	for round := range *killRounds {
		rng := rand.New(rand.NewPCG(uint64(round), 3))
		killRound(t, r, rng)
		if t.Failed() {
			t.Fatalf("round %d", round)
		}
	}
	cancel()
	running.Wait()
	t.Logf("%d rounds: %+v", *killRounds, r.Stats())
	if after := findLeftovers(t); after != before {
		t.Errorf("before: %+v, after: %+v", before, after)
	}
}

// killRound is one life of an owner with a reader in another process and one here.
func killRound(t *testing.T, r *Readers, rng *rand.Rand) {
	t.Helper()
	owner := startChild(t, "owner")
	defer owner.kill()
	addr := owner.line()
	other := startChild(t, "reader "+addr)
	defer other.kill()
	r.SetRegions([]string{addr})
	awaitRegions(t, r, 1)
	one := &reader{of: r, addrs: []string{addr}}
	read := func(times int) (hits int) {
		for range times {
			hit, err := one.read(rng.IntN(childKeys), "")
			if err != nil {
				t.Error(err)
			}
			if hit {
				hits++
			}
		}
		return hits
	}
	if bad := other.awaitProgress(1 + rng.IntN(50)); bad != 0 {
		t.Errorf("the other reader got other rows, %d times", bad)
	}
	read(rng.IntN(200))
	owner.signal(syscall.SIGSTOP)
	if n := read(10 * childKeys); n == 0 {
		t.Error("no entry of a paused owner can be read")
	}
	owner.signal(syscall.SIGCONT)
	other.signal(syscall.SIGSTOP)
	if bad := owner.awaitProgress(1 + rng.IntN(50)); bad != 0 {
		t.Errorf("the owner refused %d entries", bad)
	}
	other.signal(syscall.SIGCONT)
	if rng.IntN(2) == 0 {
		read(rng.IntN(50))
		other.kill()
		if bad := owner.awaitProgress(1 + rng.IntN(50)); bad != 0 {
			t.Errorf("the owner refused %d entries after a reader was killed", bad)
		}
		owner.kill()
	} else {
		var killing sync.WaitGroup
		killing.Go(owner.kill) // while this process reads
		read(rng.IntN(300))
		killing.Wait()
		awaitRegions(t, r, 0)
		if _, bad := other.counts(); bad != 0 {
			t.Errorf("the other reader got other rows, %d times", bad)
		}
	}
	awaitRegions(t, r, 0)
}
