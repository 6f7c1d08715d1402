package pool

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/pool"
	"penstock/core/splitmix"
	"penstock/internal/backoff"
	"penstock/internal/fixturetest"
)

var killRounds = flag.Int("pool-kills", 12, "processes which TestKilled kills")

// childPool names the variable which makes this binary a process of TestKilled: "WORKER PATH".
const childPool = "PENSTOCK_POOL_CHILD"

func TestMain(m *testing.M) {
	if text := os.Getenv(childPool); text != "" {
		runChild(text)
		return
	}
	fixturetest.RunTests(m)
}

const (
	testBlocks = 8
	testKeys   = 24 // more than the pool has room for
)

// testConfig has blocks of two chunks and a part of a third one.
var testConfig = pool.Config{BlockTokens: 4, TokenBytes: 33 << 10, Layout: "l", Type: "float32", Numerics: "n", Lease: time.Hour}

// killConfig has a lease which is over soon. A slow process may lose it.
func killConfig() pool.Config {
	cfg := testConfig
	cfg.Lease = 200 * time.Millisecond
	return cfg
}

const testSize = 1<<20 + testBlocks*4*33<<10 // for a few blocks more

func contentOf(key int) *pool.Content {
	return &pool.Content{Name: kv.SeqHash(splitmix.Mix(uint64(key))), Hash: kv.BlockHash(key), Tokens: []kv.Token{kv.Token(key), 2, 3, 4}}
}

func dataOf(key, size int) []byte {
	b := make([]byte, size)
	random := splitmix.Source(key)
	for at := 0; at < size; at += 8 {
		binary.LittleEndian.PutUint64(b[at:], random.Next())
	}
	return b
}

// publish puts a block into a pool, unless it is there or there is no room.
func publish(f *File, key int) error {
	var w pool.BlockWriter
	var data []byte
	err := f.Use(func(p *pool.View, _ kv.Mono) (err error) {
		data = dataOf(key, p.BlockBytes())
		w, _, err = p.Reserve(contentOf(key), kv.MoELabel{}, nil)
		return err
	})
	for err == nil {
		size := 0
		err = f.Use(func(p *pool.View, now kv.Mono) error {
			var at int
			if at, size = p.NextChunk(&w); size == 0 {
				return p.Publish(&w)
			}
			return p.Write(now, &w, data[at:at+size])
		})
		if size == 0 {
			break
		}
	}
	return err
}

// read reads a block by a copy and in place, and reports whether it is there.
func read(f *File, key int) (bool, error) {
	var found pool.Found
	ok := false
	var copied []byte
	err := f.Use(func(p *pool.View, _ kv.Mono) (err error) {
		copied = make([]byte, p.BlockBytes())
		if found, ok = p.Acquire(contentOf(key)); ok {
			err = p.Read(found.Ref, copied)
		}
		return err
	})
	if !ok || err != nil {
		return false, err
	}
	want := dataOf(key, len(copied))
	same := false
	err = f.Attach(found.Ref, func(block []byte) { same = bytes.Equal(block, want) })
	if err == nil {
		err = f.Use(func(p *pool.View, _ kv.Mono) error {
			defer p.Release(found.Ref)
			return p.Verify(found.Ref)
		})
	}
	if err == nil && (!same || !bytes.Equal(copied, want)) {
		err = errWrong
	}
	return err == nil, err
}

var errWrong = errors.New("wrong bytes")

// runChild publishes and reads at random until it is killed. It prints a line for each block which it reads, and ends with
// the status 3 if one has wrong bytes.
func runChild(text string) {
	var id kv.WorkerID
	var path string
	if _, err := fmt.Sscan(text, &id, &path); err != nil {
		panic(err)
	}
	f, err := Open(context.Background(), path, testSize, killConfig())
	if err != nil {
		panic(err)
	}
	go func() { panic(f.Run(context.Background(), kv.Worker{ID: id}, nil)) }() // until it is killed
	rng := rand.New(rand.NewPCG(uint64(id), 1))
	for {
		_ = publish(f, rng.IntN(testKeys)) // that it is full or there is no failure
		switch ok, err := read(f, rng.IntN(testKeys)); {
		case errors.Is(err, errWrong):
			os.Exit(3)
		case ok:
			fmt.Println("read")
		}
	}
}

// openRun opens a pool and runs it until the test ends.
func openRun(t *testing.T, path string, cfg pool.Config, id kv.WorkerID) *File {
	t.Helper()
	f, err := Open(t.Context(), path, testSize, cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = f.Run(ctx, kv.Worker{ID: id}, nil) }) // a lost pool is seen by its users
	t.Cleanup(func() {
		cancel()
		running.Wait()
		f.Close()
	})
	if err := backoff.Poll(t.Context(), time.Millisecond, func() bool { return isOwner(f) }); err != nil {
		t.Fatal(err)
	}
	return f
}

func isOwner(f *File) bool {
	return f.Use(func(p *pool.View, now kv.Mono) error { return p.Renew(now) }) == nil
}

func statsOf(t *testing.T, f *File) (s pool.Stats) {
	t.Helper()
	if err := f.Use(func(p *pool.View, _ kv.Mono) error {
		s = p.Stats()
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return s
}

// TestKilled kills processes at random while they publish and read. No process reads wrong bytes, and a survivor takes back
// what they had: the directory is consistent, and nothing is leaked.
func TestKilled(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pool")
	f := openRun(t, path, killConfig(), 1)
	rng := rand.New(rand.NewPCG(26, 1))
	start := func(n int) (*exec.Cmd, *bufio.Scanner) {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), childPool+"="+strconv.Itoa(n)+" "+path)
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		return cmd, bufio.NewScanner(out)
	}
	for n := 0; n < *killRounds; n += 2 {
		var both [2]*exec.Cmd
		for i := range both {
			cmd, lines := start(100 + n + i)
			both[i] = cmd
			for range 1 + rng.IntN(20) {
				if !lines.Scan() {
					t.Fatal("a process has ended")
				}
			}
			if _, err := read(f, rng.IntN(testKeys)); errors.Is(err, errWrong) {
				t.Error(err)
			}
		}
		for _, cmd := range both {
			_ = cmd.Process.Kill()
			if _ = cmd.Wait(); cmd.ProcessState.ExitCode() == 3 {
				t.Error("a process has read wrong bytes")
			}
		}
	}
	// One of the processes may have ended the lease of this one.
	isAlone := func() bool { return isOwner(f) && statsOf(t, f).Owners == 1 }
	if err := backoff.Poll(t.Context(), 10*time.Millisecond, isAlone); err != nil {
		t.Fatal(err)
	}
	if err := f.Use(func(p *pool.View, _ kv.Mono) error { return p.Check() }); err != nil {
		t.Log(err) // a process which was slower than its lease may have written to a block of another one
	}
	for key := range testKeys {
		if _, err := read(f, key); errors.Is(err, errWrong) {
			t.Error(err)
		}
	}
	if err := f.Use(func(p *pool.View, _ kv.Mono) error { return p.Check() }); err != nil {
		t.Error(err)
	}
	if s := statsOf(t, f); s.Pinned != 0 || s.InTransit != 0 {
		t.Errorf("%+v", s)
	}
}

func codeOf(err error) fault.Code {
	var f *fault.Error
	if errors.As(err, &f) {
		return f.Code
	}
	return fault.Internal
}

// TestOpen: the first process makes the pool, also when an earlier one was killed while it made it. Others attach it, and
// another size or another model is an error.
func TestOpen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pool")
	if err := os.WriteFile(path, make([]byte, testSize), 0o600); err != nil { // not formatted yet
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			f, err := Open(t.Context(), path, testSize, testConfig)
			if err != nil {
				t.Error(err)
				return
			}
			f.Close()
		})
	}
	all.Wait()
	f := openRun(t, path, testConfig, 1)
	if err := publish(f, 1); err != nil {
		t.Fatal(err)
	}
	if ok, err := read(openRun(t, path, testConfig, 2), 1); !ok || err != nil {
		t.Error(ok, err)
	}
	if _, err := Open(t.Context(), path, testSize*2, testConfig); codeOf(err) != fault.Conflict {
		t.Errorf("another size: %v", err)
	}
	other := testConfig
	other.Numerics = "m"
	if _, err := Open(t.Context(), path, testSize, other); codeOf(err) != fault.Conflict {
		t.Errorf("another model: %v", err)
	}
	short := path + "-short"
	if err := os.WriteFile(short, make([]byte, testSize/2), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), short, testSize, testConfig); codeOf(err) != fault.Conflict {
		t.Errorf("another size, not formatted: %v", err)
	}
	lock, err := os.Open(path)
	if err == nil {
		err = unix.Flock(int(lock.Fd()), unix.LOCK_EX)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Open(ctx, path, testSize, testConfig); !errors.Is(err, context.Canceled) {
		t.Errorf("another process makes it: %v", err)
	}
	if _, err := Open(t.Context(), filepath.Join(path, "x"), testSize, testConfig); err == nil {
		t.Error("no such directory")
	}
}

// TestTruncated: blocks beyond the end of a file are errors, others are read. A file without its directory is an error of
// the pool.
func TestTruncated(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pool")
	f := openRun(t, path, testConfig, 1)
	for key := range testBlocks {
		if err := publish(f, key); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Truncate(path, testSize/2); err != nil {
		t.Fatal(err)
	}
	var there []int
	broken := 0
	for key := range testBlocks {
		switch ok, err := read(f, key); {
		case ok:
			there = append(there, key)
		case codeOf(err) == fault.PoolLost:
			broken++
		default:
			t.Errorf("block %d: %v", key, err)
		}
	}
	if len(there) == 0 || broken == 0 {
		t.Errorf("%d blocks are there, %d are not", len(there), broken)
	}
	for _, key := range there {
		if ok, err := read(f, key); !ok {
			t.Errorf("block %d, again: %v", key, err)
		}
	}
	if err := f.Attach(pool.BlockRef{Entry: testBlocks - 1}, func(block []byte) { _ = append([]byte(nil), block...) }); codeOf(err) != fault.PoolLost {
		t.Errorf("in place: %v", err)
	}
	for _, size := range []int64{0, testSize} { // it does not come back
		if err := os.Truncate(path, size); err != nil {
			t.Fatal(err)
		}
		if _, err := read(f, 0); codeOf(err) != fault.PoolLost {
			t.Errorf("without a directory: %v", err)
		}
	}
}

// TestCloseInUse: Close does not wait for a use which hangs, which may go on. A pool which is closed cannot be used.
func TestCloseInUse(t *testing.T) {
	f, err := Open(t.Context(), filepath.Join(t.TempDir(), "pool"), testSize, testConfig)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Use(func(p *pool.View, _ kv.Mono) error {
		f.Close()
		if s := p.Stats(); s.Vacant != p.Blocks() {
			t.Errorf("%+v", s)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	f.Close()
	if err := f.Use(func(*pool.View, kv.Mono) error { return nil }); !errors.Is(err, errClosed) {
		t.Errorf("after Close: %v", err)
	}
}

// TestRunEndsInUse: Run ends though a use hangs, and the pool is left when that one returns. Nothing is reported then.
func TestRunEndsInUse(t *testing.T) {
	for name, joined := range map[string]bool{"before it joins": false, "when it leaves": true} {
		t.Run(name, func(t *testing.T) {
			f, err := Open(t.Context(), filepath.Join(t.TempDir(), "pool"), testSize, testConfig)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(f.Close)
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			ended, changes := make(chan error, 1), make(chan struct{}, 8)
			run := func() {
				ended <- f.Run(ctx, kv.Worker{ID: 1}, func([]kv.Worker, []kv.Worker) { changes <- struct{}{} })
			}
			if joined {
				go run()
				<-changes
			}
			hangs, gate := make(chan struct{}), make(chan struct{})
			var hanging sync.WaitGroup
			hanging.Go(func() {
				if err := f.Use(func(*pool.View, kv.Mono) error {
					close(hangs)
					<-gate
					return nil
				}); err != nil {
					t.Error(err)
				}
			})
			<-hangs
			if !joined {
				go run()
			}
			stop()
			select {
			case err := <-ended:
				if err != nil {
					t.Error(err)
				}
			case <-time.After(time.Minute):
				t.Error("Run waits for the pool")
			}
			close(gate)
			hanging.Wait()
			if err := backoff.Poll(t.Context(), time.Millisecond, func() bool { return statsOf(t, f).Owners == 0 }); err != nil {
				t.Error(err)
			}
			err = f.keepOwner(ctx, kv.Worker{ID: 1}, func([]kv.Worker, []kv.Worker) { t.Error("a change is reported after the end") })
			if n := statsOf(t, f).Owners; err != nil || n != 0 {
				t.Errorf("after the end: %v, %d owners", err, n)
			}
		})
	}
}

func TestSplitSpec(t *testing.T) {
	for text, want := range map[string]string{
		"0=/dev/shm/pool:2GiB": "0 /dev/shm/pool 2GiB", "7=a:b:512MiB": "7 a:b 512MiB",
		"": "", "=/x:1": "", "1=/x": "", "1=:5": "", "1=/x:": "", "-1=/x:5": "", "4294967296=/x:5": "",
	} {
		id, path, size, err := SplitSpec(text)
		got := fmt.Sprint(id, " ", path, " ", size)
		if (err != nil) != (want == "") || err == nil && got != want {
			t.Errorf("%q: %s, %v", text, got, err)
		}
	}
}
