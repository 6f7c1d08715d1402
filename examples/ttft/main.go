// Command ttft sends prompts of token ids to the worker with the shortest expected time to first token, by
// its own policy: it asks the router for each worker's load with the prompt added, estimates the time from
// that, and names the worker in the request. The router keeps tracking active and cached blocks.
//
//	go run ./examples/ttft --server http://127.0.0.1:8000 --model penstock-tiny 1 2 3 4
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := runExample(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "ttft:", err)
		os.Exit(1)
	}
}

func runExample(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("ttft", flag.ContinueOnError)
	server := flags.String("server", "http://127.0.0.1:8000", "frontend or router to ask")
	model := flags.String("model", "", "model to use")
	tokens := flags.Int("max-tokens", 16, "tokens to generate")
	var m timeModel
	flags.DurationVar(&m.prefill, "prefill", 100*time.Microsecond, "time that a worker takes for a token of a prompt")
	flags.DurationVar(&m.decode, "decode", 20*time.Microsecond, "time that a step takes longer for each active block")
	if err := flags.Parse(args); err != nil {
		return err
	}
	var prompt []uint32
	for _, arg := range flags.Args() {
		id, err := strconv.ParseUint(arg, 10, 32)
		if err != nil {
			return fmt.Errorf("token %q: %w", arg, err)
		}
		prompt = append(prompt, uint32(id))
	}

	var loads []workerLoad
	q := requestBody{Model: *model, TokenIDs: prompt}
	if err := postJSON(ctx, *server+"/v1/router/potential_loads", q, func(r io.Reader) error { return json.NewDecoder(r).Decode(&loads) }); err != nil {
		return err
	}
	best, err := m.chooseWorker(loads)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "worker %d rank %d: the first token is expected in %v\n", best.WorkerID, best.Rank, m.estimateTTFT(best))

	q.WorkerID, q.Rank = best.WorkerID, best.Rank
	q.Stop = &stopConditions{MaxTokens: *tokens}
	return postJSON(ctx, *server+"/v1/router/generate", q, func(r io.Reader) error {
		_, err := io.Copy(out, r)
		return err
	})
}

// workerLoad is a worker's load if the prompt were sent there.
type workerLoad struct {
	WorkerID      uint64 `json:"worker_id"`
	Rank          uint32 `json:"dp_rank"`
	PrefillTokens int    `json:"potential_prefill_tokens"` // including waiting, excluding cached tokens
	DecodeBlocks  int    `json:"potential_decode_blocks"`
}

// timeModel is a model of a worker's time: replace it by one fitted to yours.
type timeModel struct{ prefill, decode time.Duration }

// estimateTTFT estimates the time to the first token.
func (m timeModel) estimateTTFT(l workerLoad) time.Duration {
	return time.Duration(l.PrefillTokens)*m.prefill + time.Duration(l.DecodeBlocks)*m.decode
}

// chooseWorker returns the load with the shortest time to the first token; the first of equal ones.
func (m timeModel) chooseWorker(loads []workerLoad) (best workerLoad, err error) {
	if len(loads) == 0 {
		return best, errors.New("no worker can take the prompt now")
	}
	best = loads[0]
	for _, l := range loads[1:] {
		if m.estimateTTFT(l) < m.estimateTTFT(best) {
			best = l
		}
	}
	return best, nil
}

// requestBody is the body of both calls.
type requestBody struct {
	Model    string          `json:"model"`
	TokenIDs []uint32        `json:"token_ids"`
	WorkerID uint64          `json:"worker_id,omitempty"`
	Rank     uint32          `json:"dp_rank,omitempty"`
	Stop     *stopConditions `json:"stop_conditions,omitempty"`
}

type stopConditions struct {
	MaxTokens int `json:"max_tokens"`
}

// postJSON sends a body and reads the response with read.
func postJSON(ctx context.Context, url string, body any, read func(io.Reader) error) error {
	data, err := json.Marshal(body)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(data))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 4096)) // as far as there is any
		return fmt.Errorf("%s: %s: %s", url, resp.Status, bytes.TrimSpace(text))
	}
	return read(resp.Body)
}
