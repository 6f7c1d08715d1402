package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	eventsPerBurst = 32  // events per write of the burst server
	tokensPerFlood = 512 // response tokens in the tests of tokens/s
)

var (
	tokenEvent = []byte(`data: {"id":"cmpl-0123456789abcdef","object":"text_completion","created":1795255455,"model":"m","choices":[{"index":0,"text":" word","logprobs":null,"finish_reason":null}],"usage":null}` + "\n\n")
	eventBurst = bytes.Repeat(tokenEvent, eventsPerBurst)
)

// streamEnd is the end of a stream.
func streamEnd(tokens int) []byte {
	return fmt.Appendf(nil, "data: {\"id\":\"cmpl-0123456789abcdef\",\"object\":\"text_completion\",\"choices\":[],\"usage\":{\"prompt_tokens\":32,\"completion_tokens\":%d,\"prompt_tokens_details\":{\"cached_tokens\":0}}}\n\ndata: [DONE]\n\n", tokens)
}

// tokenServer answers completions in the ways of the tests, each under its own path.
type tokenServer struct {
	pace time.Duration
	mu   struct {
		sync.Mutex
		moments map[string][]int64 // times of tokens, by request id
	}
}

// runServer serves until standard input ends; it prints its URL on standard output.
func runServer(pace time.Duration) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	s := &tokenServer{pace: pace}
	s.mu.moments = map[string][]int64{}
	mux := http.NewServeMux()
	whole := append(append([]byte(nil), tokenEvent...), streamEnd(1)...)
	mux.HandleFunc("/plain/v1/completions", func(w http.ResponseWriter, r *http.Request) {
		writeHeader(w, r)
		w.Header().Set("Content-Length", strconv.Itoa(len(whole)))
		_, _ = w.Write(whole)
	})
	mux.HandleFunc("/one/v1/completions", floodHandler(tokenEvent, tokensPerFlood))
	mux.HandleFunc("/burst/v1/completions", floodHandler(eventBurst, tokensPerFlood/eventsPerBurst))
	mux.HandleFunc("/paced/v1/completions", s.writePaced)
	mux.HandleFunc("/moments", func(w http.ResponseWriter, _ *http.Request) {
		s.mu.Lock()
		defer s.mu.Unlock()
		_ = json.NewEncoder(w).Encode(s.mu.moments)
	})
	srv := &http.Server{Handler: mux, ReadHeaderTimeout: time.Minute}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = io.Copy(io.Discard, os.Stdin)
		_ = srv.Close()
	}()
	if err := json.NewEncoder(os.Stdout).Encode("http://" + l.Addr().String()); err != nil {
		return err
	}
	if err := srv.Serve(l); err != http.ErrServerClosed {
		return err
	}
	<-done
	return nil
}

func writeHeader(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	w.Header().Set("Content-Type", "text/event-stream")
}

// floodHandler writes a response in times writes, as fast as possible.
func floodHandler(write []byte, times int) http.HandlerFunc {
	last := streamEnd(tokensPerFlood)
	return func(w http.ResponseWriter, r *http.Request) {
		writeHeader(w, r)
		flush := http.NewResponseController(w)
		for range times {
			if _, err := w.Write(write); err != nil {
				return
			}
			if err := flush.Flush(); err != nil {
				return
			}
		}
		_, _ = w.Write(last)
	}
}

// writePaced writes tokens at an engine's pace and records the times.
func (s *tokenServer) writePaced(w http.ResponseWriter, r *http.Request) {
	var body struct {
		MaxTokens int `json:"max_tokens"`
	}
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	flush := http.NewResponseController(w)
	at := make([]int64, 0, body.MaxTokens)
	for range body.MaxTokens {
		time.Sleep(s.pace/2 + rand.N(s.pace)) // simulates the varying time of an engine's decode step
		at = append(at, monotonicNanos())
		if _, err := w.Write(tokenEvent); err != nil {
			return
		}
		if err := flush.Flush(); err != nil {
			return
		}
	}
	s.mu.Lock()
	s.mu.moments[r.Header.Get("X-Request-Id")] = at
	s.mu.Unlock()
	_, _ = w.Write(streamEnd(body.MaxTokens))
}

// monotonicNanos reads the monotonic clock which all processes of the machine share, in nanoseconds.
func monotonicNanos() int64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		panic(err) // every Linux has it
	}
	return t.Nano()
}
