package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	"penstock/internal/plane/xfer"
)

// plane is a plane which can be closed.
type plane interface {
	xfer.Plane
	io.Closer
}

// openPlane returns a plane of a transport.
func openPlane(transport string) (plane, error) {
	cfg := xfer.Config{Transfers: 1 << 20}
	if transport == "shm" {
		return xfer.NewShmPlane(cfg)
	}
	return xfer.NewTCPPlane(xfer.TCPConfig{Config: cfg})
}

// A command tells the writer what to do: a kind, and its payload.
const (
	// commandWrite: lane:u32 descriptors. The descriptors are written one after the other by the
	// goroutine of the lane, once commandGo has come.
	commandWrite = 'w'
	// commandGo starts what commandWrite prepared. The writer answers when it is done.
	commandGo = 'g'
	// commandStream: size:u32 buffers:u32 total:u64 address. A bare TCP stream of total bytes in
	// writes of size, from as many buffers in turns.
	commandStream = 's'
)

// writeCommand writes one command: length:u32 kind payload.
func writeCommand(w io.Writer, kind byte, payload []byte) error {
	head := binary.LittleEndian.AppendUint32(nil, uint32(len(payload)))
	_, err := w.Write(append(append(head, kind), payload...))
	return err
}

// serveWriter is the writing process: it obeys the commands of its standard input.
func serveWriter(ctx context.Context, _ string) error {
	planes := map[xfer.Transport]plane{}
	for transport, name := range map[xfer.Transport]string{xfer.Shm: "shm", xfer.TCP: "tcp"} {
		p, err := openPlane(name)
		if err != nil {
			return err
		}
		defer p.Close()
		planes[transport] = p
	}
	source := make([]byte, 64<<20)
	for i := range source {
		source[i] = byte(i>>8) ^ byte(i*31)
	}
	in := bufio.NewReaderSize(os.Stdin, 1<<20)
	lanes := map[uint32][]xfer.Descriptor{}
	for {
		head := make([]byte, 5)
		if _, err := io.ReadFull(in, head); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		payload := make([]byte, binary.LittleEndian.Uint32(head))
		if _, err := io.ReadFull(in, payload); err != nil {
			return err
		}
		// answer is the number of transfers of lane 0, and the nanoseconds which each took.
		answer := make([]byte, 4)
		switch head[4] {
		case commandWrite:
			d, err := xfer.DecodeDescriptor(payload[4:])
			if err != nil {
				return err
			}
			lane := binary.LittleEndian.Uint32(payload)
			lanes[lane] = append(lanes[lane], d)
			continue
		case commandGo:
			var all sync.WaitGroup
			failed := make(chan error, len(lanes))
			for lane, list := range lanes {
				all.Go(func() {
					for _, d := range list {
						src := bufferOf(source, int(lane), int(d.Size))
						began := time.Now()
						if err := xfer.Write(ctx, planes[d.Endpoints[0].Transport], d, nil, src); err != nil {
							failed <- err
							return
						}
						if lane == 0 {
							answer = binary.LittleEndian.AppendUint64(answer, uint64(time.Since(began)))
						}
					}
				})
			}
			all.Wait()
			clear(lanes)
			select {
			case err := <-failed:
				return err
			default:
			}
		case commandStream:
			size, buffers := int(binary.LittleEndian.Uint32(payload)), int(binary.LittleEndian.Uint32(payload[4:]))
			if err := streamBare(string(payload[16:]), size, buffers, int64(binary.LittleEndian.Uint64(payload[8:])), source); err != nil {
				return err
			}
		}
		binary.LittleEndian.PutUint32(answer, uint32(len(answer)-4)/8)
		if _, err := os.Stdout.Write(answer); err != nil {
			return err
		}
	}
}

// bufferOf returns the part of memory which a lane uses: one of its own while there is room.
func bufferOf(memory []byte, lane, size int) []byte {
	if (lane+1)*size > len(memory) {
		lane = 0
	}
	return memory[lane*size : (lane+1)*size]
}

// streamBare sends total bytes to addr in writes of size bytes.
func streamBare(addr string, size, buffers int, total int64, source []byte) error {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	for i := 0; int64(i)*int64(size) < total; i++ {
		if _, err := conn.Write(bufferOf(source, i%buffers, size)); err != nil {
			return err
		}
	}
	return nil
}

// pair is the owner's side of both processes.
type pair struct {
	planes map[string]plane
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    io.Reader
	stop   func()
	memory []byte        // of the owner
	used   time.Duration // processor time of both processes during the last measurement
}

func startPair(ctx context.Context) (*pair, error) {
	ctx, cancel := context.WithCancel(ctx)
	p := &pair{planes: map[string]plane{}, memory: make([]byte, 64<<20)}
	clear(p.memory)
	var running sync.WaitGroup
	p.stop = func() {
		cancel()
		running.Wait()
	}
	for _, name := range []string{"shm", "tcp"} {
		pl, err := openPlane(name)
		if err != nil {
			p.stop()
			return nil, err
		}
		p.planes[name] = pl
		ready, failed := make(chan struct{}), make(chan error, 1)
		running.Go(func() {
			if err := pl.Run(ctx, func() { close(ready) }); err != nil {
				failed <- err
			}
		})
		select {
		case <-ready:
		case err := <-failed:
			p.stop()
			return nil, err
		}
	}
	self, err := os.Executable()
	if err != nil {
		p.stop()
		return nil, err
	}
	p.cmd = exec.CommandContext(ctx, self, "-writer", "all")
	p.cmd.Stderr = os.Stderr
	var errs [3]error
	p.in, errs[0] = p.cmd.StdinPipe()
	p.out, errs[1] = p.cmd.StdoutPipe()
	errs[2] = p.cmd.Start()
	return p, errors.Join(errs[:]...)
}

func (p *pair) close() {
	p.in.Close()
	_ = p.cmd.Wait() // it ends with its input
	p.stop()
	for _, pl := range p.planes {
		pl.Close()
	}
}

// awaitWriter waits for the writer's answer: how long the transfers of lane 0 took.
func (p *pair) awaitWriter() ([]time.Duration, error) {
	var head [4]byte
	if _, err := io.ReadFull(p.out, head[:]); err != nil {
		return nil, fmt.Errorf("the writer has ended: %w", err)
	}
	body := make([]byte, 8*binary.LittleEndian.Uint32(head[:]))
	if _, err := io.ReadFull(p.out, body); err != nil {
		return nil, fmt.Errorf("the writer has ended: %w", err)
	}
	var list []time.Duration
	for ; len(body) > 0; body = body[8:] {
		list = append(list, time.Duration(binary.LittleEndian.Uint64(body)))
	}
	return list, nil
}

// batch is a set of transfers of one lane, which follow each other.
type batch struct{ lane, size, count int }

// moveBatches opens the transfers of all batches, has the writer fulfil them, and returns the time
// from its start until the last one has arrived, and that of each transfer of lane 0 at the writer.
func (p *pair) moveBatches(ctx context.Context, transport string, batches []batch) (time.Duration, []time.Duration, error) {
	var list []*xfer.Transfer
	for _, b := range batches {
		for range b.count {
			t, err := p.planes[transport].Expect(xfer.Incoming{Into: [][]byte{bufferOf(p.memory, b.lane, b.size)}})
			if err != nil {
				return 0, nil, err
			}
			payload, err := t.Descriptor().AppendBinary(binary.LittleEndian.AppendUint32(nil, uint32(b.lane)))
			if err != nil {
				return 0, nil, err
			}
			if err := writeCommand(p.in, commandWrite, payload); err != nil {
				return 0, nil, err
			}
			list = append(list, t)
		}
	}
	runtime.GC() // what opening the transfers left is not to be collected meanwhile
	before := p.processorTime()
	began := time.Now()
	if err := writeCommand(p.in, commandGo, nil); err != nil {
		return 0, nil, err
	}
	for _, t := range list {
		if _, err := t.Wait(ctx); err != nil {
			return 0, nil, err
		}
	}
	took := time.Since(began)
	p.used = p.processorTime() - before
	times, err := p.awaitWriter()
	return took, times, err
}

// processorTime returns the processor time of both processes so far.
func (p *pair) processorTime() time.Duration {
	var sum time.Duration
	for _, pid := range []int{os.Getpid(), p.cmd.Process.Pid} {
		tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
		if err != nil {
			return 0
		}
		for _, task := range tasks {
			var ns int64
			if b, err := os.ReadFile(task); err == nil {
				if _, err := fmt.Sscan(string(b), &ns); err == nil {
					sum += time.Duration(ns)
				}
			}
		}
	}
	return sum
}

// streamBare returns the time of a bare TCP stream of total bytes in writes and reads of size,
// from and to as many buffers in turns.
func (p *pair) streamBare(size, buffers int, total int64) (time.Duration, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	payload := binary.LittleEndian.AppendUint32(nil, uint32(size))
	payload = binary.LittleEndian.AppendUint32(payload, uint32(buffers))
	payload = binary.LittleEndian.AppendUint64(payload, uint64(total))
	if err := writeCommand(p.in, commandStream, append(payload, l.Addr().String()...)); err != nil {
		return 0, err
	}
	conn, err := l.Accept()
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	before := p.processorTime()
	began := time.Now()
	for i := 0; int64(i)*int64(size) < total; i++ {
		if _, err := io.ReadFull(conn, bufferOf(p.memory, i%buffers, size)); err != nil {
			return 0, err
		}
	}
	took := time.Since(began)
	p.used = p.processorTime() - before
	_, err = p.awaitWriter()
	return took, err
}
