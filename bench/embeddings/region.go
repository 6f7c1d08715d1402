package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/zeebo/xxh3"

	"penstock/core/embcache"
	"penstock/internal/backoff"
	"penstock/internal/embregion"
	"penstock/internal/plane/xfer"
)

const (
	// regionBytes is the memory through which all loops go, so that it does not stay in a processor's cache.
	regionBytes = 128 << 20
	// regionRounds is how often the loops take turns, each for regionTurn.
	regionRounds = 15
	regionTurn   = 200 * time.Millisecond
)

// rate is how fast rows of a size are copied, in medians of all rounds.
type rate struct {
	Bytes  int     `json:"bytes"`
	Region float64 `json:"region_gb_per_s"`
	Plain  float64 `json:"plain_gb_per_s"`
	Memcpy float64 `json:"memcpy_gb_per_s"`
	// Ratio is the median of the ratios of region to plain, each of one round.
	Ratio float64 `json:"ratio"`
}

func printRates(rates []rate) {
	if len(rates) == 0 {
		return
	}
	fmt.Printf("region\n%10s %12s %12s %12s %8s\n", "BYTES", "REGION GB/s", "PLAIN GB/s", "MEMCPY GB/s", "RATIO")
	for _, r := range rates {
		fmt.Printf("%10d %12.2f %12.2f %12.2f %8.2f\n", r.Bytes, r.Region, r.Plain, r.Memcpy, r.Ratio)
	}
	fmt.Println()
}

// regionKey returns the key of entry i.
func regionKey(i int) (key embcache.RowKey) {
	binary.LittleEndian.PutUint64(key.Digest[:], uint64(i)+1)
	return key
}

// serveRegion is an owner of entries of a size, until its input ends.
func serveRegion(ctx context.Context, size int) (err error) {
	o, err := embregion.NewOwner(embregion.OwnerConfig{})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer func() { err = errors.Join(err, o.Close()) }()
	defer running.Wait()
	defer cancel()
	running.Go(func() { _ = o.Run(ctx) }) // the reader notices if it fails
	memory := o.Allocate(regionBytes)
	for i := range regionBytes / size {
		slot := embcache.Slot{Offset: i * size, Length: size}
		rows := memory[slot.Offset : slot.Offset+size]
		fillRows(rows, i)
		item := embcache.Item{Key: regionKey(i), Bytes: size, Shape: embcache.Shape{Layers: 1, Rows: 1, Width: size / 4}}
		o.AddEntry(&embregion.Added{Item: &item, Slot: slot, Digest: xfer.DigestOf(rows)})
	}
	fmt.Println(o.Addr())
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

func fillRows(rows []byte, seed int) {
	for i := range rows {
		rows[i] = byte(i>>8) ^ byte(i*31) ^ byte(seed)
	}
}

// measureRegions measures rows of several sizes.
func measureRegions(ctx context.Context) (rates []rate, err error) {
	for _, size := range []int{64 << 10, 1 << 20, 16 << 20} {
		r, err := measureRegion(ctx, size)
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(os.Stderr, "%+v\n", r)
		rates = append(rates, r)
	}
	return rates, nil
}

func measureRegion(ctx context.Context, size int) (r rate, err error) {
	self, err := os.Executable()
	if err != nil {
		return r, err
	}
	ctx, cancel := context.WithCancel(ctx)
	owner := exec.CommandContext(ctx, self, "-owner", strconv.Itoa(size))
	owner.Stderr = os.Stderr
	in, err := owner.StdinPipe()
	if err != nil {
		cancel()
		return r, err
	}
	out, err := owner.StdoutPipe()
	if err == nil {
		err = owner.Start()
	}
	if err != nil {
		cancel()
		return r, err
	}
	var running sync.WaitGroup
	defer func() {
		_ = in.Close()
		cancel()
		running.Wait()
		_ = owner.Wait() // its input has ended
	}()
	addr, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		return r, fmt.Errorf("the owner has ended: %w", err)
	}
	addr = strings.TrimSpace(addr)
	readers := embregion.NewReaders(embregion.ReadersConfig{})
	readers.SetRegions([]string{addr})
	running.Go(func() { _ = readers.Run(ctx) }) // it says nothing but that ctx has ended
	if err := backoff.Poll(ctx, time.Millisecond, func() bool { return readers.Stats().Regions == 1 }); err != nil {
		return r, err
	}
	return measureLoops(size, readers, addr)
}

// measureLoops has the three loops take turns.
func measureLoops(size int, readers *embregion.Readers, addr string) (r rate, err error) {
	source, into := make([]byte, regionBytes), make([]byte, size)
	fillRows(source, 1)
	fillRows(into, 2)
	keys := make([]embregion.Wanted, regionBytes/size)
	for i := range keys {
		key := regionKey(i)
		keys[i] = embregion.Wanted{Key: key.TierKey(), Rows: 1, Width: size / 4, Bytes: size}
	}
	addrs := []string{addr}
	loops := [3]func(i int){
		func(i int) {
			if _, ok := readers.ReadRows(addrs, &keys[i], func([3]int) []byte { return into }); !ok {
				err = errors.New("unchanged rows were a miss")
			}
		},
		func(i int) { copyAndDigest(into, source[i*size:(i+1)*size]) },
		func(i int) { copy(into, source[i*size:(i+1)*size]) },
	}
	var rates [3][]float64
	var ratios []float64
	for round := range regionRounds + 1 {
		var took [3]float64
		for turn := range loops {
			which := (turn + round) % len(loops)
			began, n := time.Now(), 0
			for time.Since(began) < regionTurn {
				loops[which](n % len(keys))
				n++
			}
			took[which] = float64(n) * float64(size) / time.Since(began).Seconds() / 1e9
		}
		if round == 0 { // pages are mapped in it
			continue
		}
		for i := range rates {
			rates[i] = append(rates[i], took[i])
		}
		ratios = append(ratios, took[0]/took[1])
	}
	return rate{Bytes: size, Region: median(rates[0]), Plain: median(rates[1]), Memcpy: median(rates[2]), Ratio: median(ratios)}, err
}

// copyAndDigest is the plain loop: pieces which stay in the cache of a core are copied and digested.
func copyAndDigest(into, source []byte) (sum uint64) {
	for len(source) > 0 {
		n := copy(into, source[:min(len(source), xfer.ChunkSize)])
		sum ^= xxh3.Hash(into[:n])
		into, source = into[n:], source[n:]
	}
	return sum
}

func median(of []float64) float64 {
	slices.Sort(of)
	return of[len(of)/2]
}
