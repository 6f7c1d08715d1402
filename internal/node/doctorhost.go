package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"penstock/internal/config"
	"penstock/internal/engine/tiny"
)

const (
	// fewFiles is how many open files are too few for a process that serves: each
	// client and each peer is one.
	fewFiles = 4096
	// littleShared is how much shared memory is little, in bytes: containers that
	// are not asked for more have as much.
	littleShared = 64 << 20
	// littleDisk is how much free space a data directory should have, in bytes.
	littleDisk = 1 << 30
	// fullDisk is with how much free space a data directory is full, in bytes: an embedded
	// NATS server that could not write wants some more than 16 MiB to go on.
	fullDisk = 32 << 20
	// firstYear is one in which no machine with a right clock runs this.
	firstYear = 2025
)

// machine checks the limits of this machine that processes run into.
func (d *doctor) machine() {
	d.found = append(d.found, d.host.checkFiles(d.cfg)...)
	d.shared()
	d.disk()
	if now := time.Now(); now.Year() < firstYear {
		d.fail("clock", "set the clock, and keep it right with NTP", "this machine says that it is %s", now.UTC().Format(time.DateOnly))
	}
}

func (d *doctor) shared() {
	const dir = "/dev/shm"
	free, known := d.host.free(dir)
	if !known {
		return
	}
	if free <= littleShared {
		d.warn("shared memory", "give the container more, for example with --shm-size=1g; this version does not need it, engines beside it do", "%s has %s free", dir, bytesText(free))
		return
	}
	d.ok("shared memory", "%s has %s free", dir, bytesText(free))
}

// disk checks where the process would write.
func (d *doctor) disk() {
	if d.cfg == nil {
		return
	}
	dir := dataDir(d.cfg)
	if dir == "" {
		return
	}
	if !writable(dir) {
		d.fail("data-dir", "give the user who runs Penstock the right to write there", "%s cannot be written", dir)
		return
	}
	found := d.host.checkRoom(dir)
	if len(found) == 0 {
		d.ok("data-dir", "%s can be written", dir)
	}
	d.found = append(d.found, found...)
}

// memory compares what the engines of the settings will reserve with what there
// is. Of a checkpoint it is the least: its files, without caches.
func (d *doctor) memory(ctx context.Context) {
	if d.cfg.Command != config.Up && d.cfg.Command != config.Worker || d.cfg.Remote() {
		return
	}
	have := memory()
	if have == 0 {
		return
	}
	const remedy = "lower --kv-cache-blocks or --workers, or take a machine with more memory"
	if d.cfg.Engine() == config.EngineSim {
		if full := simulatedBytes(d.cfg); full > have {
			d.warn("memory", remedy, "the simulated engines would take %s with full caches, and there are %s of memory", bytesText(full), bytesText(have))
		} else {
			d.ok("memory", "the simulated engines take up to %s, with full caches, of %s", bytesText(full), bytesText(have))
		}
		return
	}
	if d.cfg.ModelPath != "" {
		if files := weightBytes(d.cfg.ModelPath); files > have {
			d.fail("memory", remedy, "the weights in %s take %s, and there are %s of memory", d.cfg.ModelPath, bytesText(files), bytesText(have))
		} else {
			d.ok("memory", "the weights take at least %s, and there are %s", bytesText(files), bytesText(have))
		}
		return
	}
	err := reservation(ctx, d.cfg)
	var need *tiny.MemoryError
	if !errors.As(err, &need) {
		d.fail("memory", "correct the settings of the engine", "%v", err)
		return
	}
	all := float64(need.Weights) + float64(need.Engines)*float64(need.Cache) // more than an integer holds, perhaps
	if all > float64(have) {
		d.fail("memory", remedy, "the engines reserve %.1f GiB, and there are %s of memory", all/(1<<30), bytesText(have))
		return
	}
	d.ok("memory", "the engines reserve %s of %s", bytesText(uint64(all)), bytesText(have))
}

// blockBytes is what a block costs beside its tokens, as measured: its state in the
// simulated engine, its place in the index of the router in the same process, its event,
// and the room that the collector of memory takes.
const blockBytes = 400

// simulatedBytes is the memory that the simulated engines of the settings would
// take if all their blocks were used. They take it as blocks are used.
func simulatedBytes(cfg *config.Loaded) uint64 {
	return uint64(engineCount(cfg)) * uint64(cfg.Blocks()) * uint64(blockBytes+4*cfg.KVCacheBlockSize)
}

// reservation returns what the engines of the built-in model would reserve, as the
// error of a machine that has next to no memory: nothing is reserved.
func reservation(ctx context.Context, cfg *config.Loaded) error {
	vocabulary, err := builtinVocabulary()
	if err != nil {
		return err
	}
	tc := tinyConfig(cfg)
	tc.Vocabulary, tc.MemoryLimit = vocabulary, 1
	_, err = tiny.NewReplicas(ctx, tc, engineCount(cfg))
	return err
}

// weightBytes is the size of the weights in a checkpoint's directory.
func weightBytes(dir string) uint64 {
	files, err := filepath.Glob(filepath.Join(dir, "*.safetensors"))
	if err != nil { // dir holds a pattern
		return 0
	}
	var sum uint64
	for _, f := range files {
		if st, err := os.Stat(f); err == nil {
			sum += uint64(st.Size())
		}
	}
	return sum
}

// writable reports whether a file can be made in dir.
func writable(dir string) bool {
	f, err := os.CreateTemp(dir, ".penstock-doctor-")
	if err != nil {
		return false
	}
	return errors.Join(f.Close(), os.Remove(f.Name())) == nil
}

// bytesText writes a number of bytes for people.
func bytesText(n uint64) string {
	switch {
	case n >= 1<<30:
		return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
	case n >= 1<<20:
		return fmt.Sprintf("%.0f MiB", float64(n)/(1<<20))
	}
	return fmt.Sprintf("%d bytes", n)
}
