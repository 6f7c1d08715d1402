package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"os"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"penstock/core/encode"
	"penstock/core/kv"
	"penstock/core/media"
)

// objectRequest is one request's media: the tokens of each object, and the bytes of a row.
type objectRequest struct {
	kind     media.Kind
	tokens   int
	rowBytes int
}

func (r objectRequest) bytes() int64 { return int64(r.tokens) * int64(r.rowBytes) }

// memoryFigures are what a run held, in bytes.
type memoryFigures struct {
	Requests int     `json:"requests"`
	Rows     int64   `json:"rows_bytes"` // of all requests together
	Seconds  float64 `json:"seconds"`
	// CPU and Staging are the most that the machine counted, Mapped the most memory which was mapped for both.
	CPU     int64 `json:"cpu_bytes"`
	Staging int64 `json:"staging_bytes"`
	Mapped  int64 `json:"mapped_bytes"`
	// Resident is the peak of the process's resident memory, above what it was at the beginning.
	Resident int64 `json:"resident_bytes"`
	Wrong    int   `json:"wrong"` // requests with another row than their encoder wrote
	Left     int64 `json:"left_bytes"`
}

// shell runs a machine: one goroutine has it, others encode, copy and merge.
type shell struct {
	m       *encode.Machine
	began   time.Time
	objects map[encode.RequestID]objectRequest
	rows    map[encode.RowsID][]byte
	staged  map[encode.RequestID][]byte
	// runs are for the encoders, copies for the others; done has the ends of both.
	runs, copies chan func() report
	done         chan report
	figures      memoryFigures
	mapped       int64
	ended        int
}

// report is the end of a run, a copy or a merge.
type report struct {
	run     encode.RunID // 0 for the others
	results []encode.Result
	request encode.RequestID
	merged  bool // not copied
	wrong   bool // other rows than the encoder wrote were merged
}

// copiers is the number of goroutines which copy and merge.
const copiers = 2

// measureMemory submits all requests at once, and returns when all have been merged.
func (s *encodingSettings) measureMemory(ctx context.Context, all []objectRequest) (f memoryFigures, err error) {
	debug.FreeOSMemory()
	if err := os.WriteFile("/proc/self/clear_refs", []byte("5"), 0); err != nil { // the peak begins here
		return f, err
	}
	before, err := residentPeak()
	if err != nil {
		return f, err
	}
	m, err := encode.New(encode.Config{
		MaxJobs: 32, MaxBatch: 8, BatchWait: 5 * time.Millisecond, MaxAttempts: 3, CPUBudget: s.cpu, StagingBudget: s.staging, MaxObjects: len(all),
	})
	if err != nil {
		return f, err
	}
	h := &shell{
		m: m, began: time.Now(), objects: map[encode.RequestID]objectRequest{}, rows: map[encode.RowsID][]byte{}, staged: map[encode.RequestID][]byte{},
		runs: make(chan func() report, len(all)), copies: make(chan func() report, 2*len(all)), done: make(chan report, 2*len(all)),
	}
	var workers sync.WaitGroup
	for i := range s.encoders + copiers {
		jobs := h.runs
		if i >= s.encoders {
			jobs = h.copies
		}
		workers.Go(func() {
			for job := range jobs {
				h.done <- job()
			}
		})
	}
	err = h.serve(ctx, s.encoders, all)
	close(h.runs)
	close(h.copies)
	go func() { workers.Wait(); close(h.done) }()
	for range h.done { // nothing writes into memory which is given back
	}
	peak, peakErr := residentPeak()
	st := m.Stats()
	h.figures.Left = st.CPUBytes + st.StagingBytes + h.mapped
	for _, b := range slices.AppendSeq(slices.Collect(maps.Values(h.rows)), maps.Values(h.staged)) {
		err = errors.Join(err, h.unmap(b))
	}
	h.figures.Requests, h.figures.Seconds = len(all), time.Since(h.began).Seconds()
	h.figures.Resident = peak - before
	return h.figures, errors.Join(err, peakErr)
}

// serve submits all requests, and drives the machine until they have ended.
func (h *shell) serve(ctx context.Context, encoders int, all []objectRequest) error {
	for i := range encoders {
		actions, err := h.m.AddEncoder(h.now(), encode.EncoderID(i), encode.EncoderLimits{Runs: 1}, nil)
		if err = errors.Join(err, h.perform(actions)); err != nil {
			return err
		}
	}
	for _, r := range all {
		h.figures.Rows += r.bytes()
		id, actions, err := h.m.SubmitRequest(h.now(), encode.Submission{
			Placeholders: []encode.Placeholder{{Kind: uint8(r.kind)}},
			Objects:      []encode.SubmittedObject{{Kind: uint8(r.kind), Tokens: r.tokens, Bytes: r.bytes(), Shape: [4]int{r.tokens}}},
		}, nil)
		h.objects[id] = r
		if err = errors.Join(err, h.perform(actions)); err != nil {
			return err
		}
	}
	for h.ended < len(all) {
		var timer <-chan time.Time
		if at, ok := h.m.Deadline(); ok {
			timer = time.After(at.Sub(h.now()))
		}
		var actions []encode.Action
		var err error
		select {
		case r := <-h.done:
			actions, err = h.handleReport(&r)
		case <-timer:
			actions = h.m.Tick(h.now(), nil)
		case <-ctx.Done():
			return ctx.Err()
		}
		if err = errors.Join(err, h.perform(actions)); err != nil {
			return err
		}
	}
	return nil
}

func (h *shell) now() kv.Mono { return kv.Mono(time.Since(h.began)) }

// perform does what the machine asks for.
func (h *shell) perform(actions []encode.Action) error {
	h.notePeaks()
	for len(actions) > 0 {
		a := actions[0]
		more, err := h.performOne(&a)
		if err != nil {
			return err
		}
		h.notePeaks()
		actions = append(actions[1:], more...)
	}
	return nil
}

func (h *shell) performOne(a *encode.Action) (more []encode.Action, err error) {
	switch a.Kind {
	case encode.RunBatch:
		done := report{run: a.Run}
		var into [][]byte
		for _, item := range a.Items {
			r := h.objects[item.Request]
			b, err := h.mapMemory(r.bytes())
			if err != nil {
				return nil, err
			}
			h.rows[item.Rows] = b
			into = append(into, b)
			done.results = append(done.results, encode.Result{Tokens: r.tokens, Bytes: r.bytes()})
		}
		items := a.Items
		h.runs <- func() report {
			for i, b := range into {
				writeRows(b, uint64(items[i].Request))
			}
			return done
		}
	case encode.RequestReady:
		return h.m.StageRequest(h.now(), a.Request, nil)
	case encode.CopyRows:
		return nil, h.startCopy(a)
	case encode.DropRows:
		b := h.rows[a.Rows]
		delete(h.rows, a.Rows)
		return nil, h.unmap(b)
	case encode.RequestEnded:
		if a.Ending != encode.Completed {
			return nil, fmt.Errorf("request %d has %v: %v", a.Request, a.Ending, a.Failures)
		}
		h.ended++
		delete(h.objects, a.Request)
	}
	return nil, nil
}

// startCopy has rows copied into staging memory.
func (h *shell) startCopy(a *encode.Action) error {
	staged, err := h.mapMemory(h.objects[a.Request].bytes())
	if err != nil {
		return err
	}
	id, source := a.Request, h.rows[a.Sources[0].Rows] // each request has one object
	h.staged[id] = staged
	h.copies <- func() report {
		copy(staged, source)
		return report{request: id}
	}
	return nil
}

// handleReport tells the machine what has ended. What was copied is merged, which here is to read and check each row.
func (h *shell) handleReport(r *report) (more []encode.Action, err error) {
	staged, id := h.staged[r.request], r.request
	switch {
	case r.run != 0:
		return h.m.FinishRun(h.now(), r.run, r.results, nil)
	case !r.merged:
		h.copies <- func() report {
			return report{request: id, merged: true, wrong: !hasRows(staged, uint64(id))}
		}
		return h.m.MarkCopied(h.now(), id, nil)
	case r.wrong:
		h.figures.Wrong++
	}
	delete(h.staged, id)
	if err := h.unmap(staged); err != nil {
		return nil, err
	}
	if more, err = h.m.MarkMerged(h.now(), id, nil); err != nil {
		return nil, err
	}
	return h.m.MarkPrefilled(h.now(), id, more)
}

func (h *shell) notePeaks() {
	st := h.m.Stats()
	h.figures.CPU, h.figures.Staging = max(h.figures.CPU, st.CPUBytes), max(h.figures.Staging, st.StagingBytes)
	h.figures.Mapped = max(h.figures.Mapped, h.mapped)
}

// mapMemory maps memory of the system, which unmap gives back at once: the collector holds none of it.
func (h *shell) mapMemory(n int64) ([]byte, error) {
	b, err := syscall.Mmap(-1, 0, int(n), syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err == nil {
		h.mapped += n
	}
	return b, err
}

func (h *shell) unmap(b []byte) error {
	h.mapped -= int64(len(b))
	return syscall.Munmap(b)
}

// writeRows writes rows which no other request uses.
func writeRows(b []byte, of uint64) {
	for at := 0; at+8 <= len(b); at += 8 {
		binary.LittleEndian.PutUint64(b[at:], of<<32|uint64(at))
	}
}

// hasRows reports whether writeRows has written b.
func hasRows(b []byte, of uint64) bool {
	for at := 0; at+8 <= len(b); at += 8 {
		if binary.LittleEndian.Uint64(b[at:]) != of<<32|uint64(at) {
			return false
		}
	}
	return true
}

// residentPeak returns the peak of the process's resident memory, in bytes.
func residentPeak() (int64, error) {
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kib, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(value), "kB")), 10, 64)
			return kib << 10, err
		}
	}
	return 0, errors.New("/proc/self/status has no VmHWM: this needs Linux")
}
