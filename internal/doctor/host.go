package doctor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"penstock/internal/node/engines"

	"penstock/internal/config"
	"penstock/internal/engine/tiny"
)

const (
	// fewFiles is the open-file limit below which a serving process gets a warning: each client and each peer
	// takes one.
	fewFiles = 4096
	// littleShared is shared memory, in bytes, which gets a warning: it is the default of containers.
	littleShared = 64 << 20
	// littleDisk is how much free space a data directory should have, in bytes.
	littleDisk = 1 << 30
	// fullDisk is the free space below which a data directory counts as full, in bytes: an embedded NATS
	// server that could not write needs a little more than 16 MiB to go on.
	fullDisk = 32 << 20
	// firstYear is the earliest year of a plausible clock.
	firstYear = 2025
)

// checkMachine checks the limits of this machine which processes run into.
func (d *examiner) checkMachine() {
	d.findings = append(d.findings, d.host.checkFiles(d.cfg)...)
	d.checkSharedMemory()
	d.checkDataDir()
	if now := time.Now(); now.Year() < firstYear {
		d.reportFailure("clock", "set the clock, and keep it right with NTP", "this machine says that it is %s", now.UTC().Format(time.DateOnly))
	}
}

func (d *examiner) checkSharedMemory() {
	const dir = "/dev/shm"
	free, known := d.host.free(dir)
	if !known {
		return
	}
	if free <= littleShared {
		d.reportWarning("shared memory", "give the container more, for example with --shm-size=1g; this version does not need it, engines beside it do", "%s has %s free", dir, formatBytes(free))
		return
	}
	d.reportOK("shared memory", "%s has %s free", dir, formatBytes(free))
}

// checkDataDir checks the directory to which the process would write.
func (d *examiner) checkDataDir() {
	if d.cfg == nil {
		return
	}
	dir := dataDir(d.cfg)
	if dir == "" {
		return
	}
	if !isWritable(dir) {
		d.reportFailure("data-dir", "give the user who runs Penstock the right to write there", "%s cannot be written", dir)
		return
	}
	found := d.host.checkRoom(dir)
	if len(found) == 0 {
		d.reportOK("data-dir", "%s can be written", dir)
	}
	d.findings = append(d.findings, found...)
}

// checkMemory compares what the engines of the settings will reserve with the available memory. For a
// checkpoint it uses a lower bound: its files, without caches.
func (d *examiner) checkMemory(ctx context.Context) {
	if d.cfg.Command != config.Up && d.cfg.Command != config.Worker || d.cfg.HasRemoteEngines() {
		return
	}
	have := engines.MemoryLimit()
	if have == 0 {
		return
	}
	const remedy = "lower --kv-cache-blocks, --workers or --embedding-cache-capacity-gb, or take a machine with more memory"
	if d.cfg.EngineKind() == config.EngineSim {
		if full := simulatedBytes(d.cfg); full > have {
			d.reportWarning("memory", remedy, "the simulated engines would take %s with full caches, and there are %s of memory", formatBytes(full), formatBytes(have))
		} else {
			d.reportOK("memory", "the simulated engines take up to %s, with full caches, of %s", formatBytes(full), formatBytes(have))
		}
		return
	}
	if d.cfg.Engine.ModelPath != "" {
		if files := weightBytes(d.cfg.Engine.ModelPath); files > have {
			d.reportFailure("memory", remedy, "the weights in %s take %s, and there are %s of memory", d.cfg.Engine.ModelPath, formatBytes(files), formatBytes(have))
		} else {
			d.reportOK("memory", "the weights take at least %s, and there are %s", formatBytes(files), formatBytes(have))
		}
		return
	}
	err := engines.EstimateMemory(ctx, d.cfg)
	var need *tiny.MemoryError
	if !errors.As(err, &need) {
		d.reportFailure("memory", "correct the settings of the engine", "%v", err)
		return
	}
	all := float64(need.Weights) + float64(need.Engines)*float64(need.Cache) // it may overflow an integer
	if all > float64(have) {
		d.reportFailure("memory", remedy, "the engines reserve %.1f GiB, and there are %s of memory", all/(1<<30), formatBytes(have))
		return
	}
	d.reportOK("memory", "the engines reserve %s of %s", formatBytes(uint64(all)), formatBytes(have))
}

// blockBytes is the measured cost of a block apart from its tokens: its state in the simulated engine, its
// entry in the index of the router in the same process, its event, and the garbage collector's overhead.
const blockBytes = 400

// simulatedBytes is the memory of the settings' simulated engines with all blocks used. They allocate it as
// blocks are used.
func simulatedBytes(cfg *config.Loaded) uint64 {
	return uint64(engines.Count(cfg)) * uint64(cfg.CacheBlocks()) * uint64(blockBytes+4*cfg.Engine.BlockSize)
}

// weightBytes is the size of the weights in a checkpoint's directory.
func weightBytes(dir string) uint64 {
	files, err := filepath.Glob(filepath.Join(dir, "*.safetensors"))
	if err != nil { // dir contains a malformed pattern
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

// isWritable reports whether a file can be created in dir.
func isWritable(dir string) bool {
	f, err := os.CreateTemp(dir, ".penstock-doctor-")
	if err != nil {
		return false
	}
	return errors.Join(f.Close(), os.Remove(f.Name())) == nil
}

// formatBytes writes a number of bytes for people.
func formatBytes(n uint64) string {
	switch {
	case n >= 1<<30:
		return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
	case n >= 1<<20:
		return fmt.Sprintf("%.0f MiB", float64(n)/(1<<20))
	}
	return fmt.Sprintf("%d bytes", n)
}
