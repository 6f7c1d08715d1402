package simcluster

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"penstock/core/encode"
	"penstock/core/exact"
	"penstock/core/kv"
	"penstock/core/media"
	"penstock/core/splitmix"
	"penstock/internal/engine/sim"
	"penstock/internal/replay"
)

// The tables of this file stand beside those of a published description of encoders which run beside the engine, for
// Llama 70B on A100s. What it says is a parameter here or a figure to compare with; nothing is fitted. docs/sim.md has
// the tables and explains where they differ.
const (
	// A request has 256 tokens of text. A picture has 1,024 tokens, a video of 30 frames 3,840, one of 120 frames 7,680.
	textTokens, pictureTokens, videoTokens, longVideoTokens = 256, 1024, 3840, 7680
	// 190 ms are enough to prefill "6-8" prompts of text or to decode "~7" tokens: 7 of both.
	shortPrefill = 190.0 / 7
	decodeStep   = 190.0 / 7
	// The first token of the request with a video comes 163 ms after the 50 ms of its encoder.
	videoPass = 163.0
	// answerTokens is a choice: the description does not say how long answers are.
	answerTokens = 64
	// 12 and 38 GB of K and V, at 80 layers with 8 heads of 128 elements of 2 bytes, in blocks of 16 tokens.
	kvBlocks = 50_000_000_000 / (2 * 80 * 8 * 128 * 2) / 16
)

// prefillByTokens is the prefill that takes shortPrefill for a prompt of text, and videoPass with a decode step for one
// with a video: a constant, and a time for each token.
func prefillByTokens() sim.Prefill {
	const perToken = (videoPass - decodeStep - shortPrefill) / videoTokens
	return sim.Prefill{Pass: shortPrefill - textTokens*perToken, Token: perToken}
}

// prefillConstant takes as long for every pass, whatever it computes. The published figures of 32 requests need that.
func prefillConstant() sim.Prefill { return sim.Prefill{Pass: videoPass - decodeStep} }

// tableConfig is one worker which encodes in its passes, or beside them.
func tableConfig(p sim.Prefill, encoders int, image, video, longVideo float64) Config {
	return Config{
		Blocks: kvBlocks, Encoders: encoders,
		Timing: sim.Timing{Prefill: p, Decode: sim.Decode{Base: decodeStep}, EncoderOf: map[media.Kind][]sim.EncoderPoint{
			media.Image: {{Tokens: pictureTokens, Millis: image}},
			media.Video: {{Tokens: videoTokens, Millis: video}, {Tokens: longVideoTokens, Millis: longVideo}},
		}},
	}
}

// tableRequest is a request for a text, after an object of the given tokens if it shows one. No two share anything.
func tableRequest(index int, at time.Duration, kind media.Kind, objectTokens int) replay.Request {
	r := replay.Request{Index: index, At: at, Input: textTokens + objectTokens, Output: answerTokens}
	if objectTokens > 0 {
		r.Media = []replay.Media{{Kind: kind.String(), ID: fmt.Sprint(index), Tokens: objectTokens}}
	}
	return r
}

// TestEncodingTables computes the tables, which must be those of testdata/encodetables.txt and of docs/sim.md.
func TestEncodingTables(t *testing.T) {
	page, err := os.ReadFile("../../docs/sim.md")
	if err != nil {
		t.Fatal(err)
	}
	tables := map[string]string{}
	datadriven.RunTest(t, "testdata/encodetables.txt", func(t *testing.T, d *datadriven.TestData) string {
		var out strings.Builder
		switch d.Cmd {
		case "first-token":
			tableFirstTokens(t, &out)
		case "mixes":
			tableMixes(t, &out)
		case "batches":
			tableBatches(t, &out)
		}
		tables[d.Cmd] = out.String()
		return out.String()
	})
	for _, name := range []string{"first-token", "mixes", "batches"} {
		if table := tables[name]; table == "" || !strings.Contains(string(page), table) {
			t.Errorf("docs/sim.md does not have the table %s:\n%s", name, table)
		}
	}
}

// tableFirstTokens has the times to the first token of 32 requests which come at once, one with a video.
func tableFirstTokens(t *testing.T, out *strings.Builder) {
	fmt.Fprint(out, "| requests | published | P: video | P: texts | Q: video | Q: texts | R: video | R: texts |\n|---|---|---|---|---|---|---|---|\n")
	for _, c := range []struct {
		name      string
		encoders  int
		texts     int
		video     int // tokens
		published int
	}{
		{"1, in the pass", 0, 0, videoTokens, 213},
		{"1, beside", 1, 0, videoTokens, 213},
		{"32, one of 50 ms, in the pass", 0, 31, videoTokens, 248},
		{"32, one of 50 ms, beside", 1, 31, videoTokens, 168},
		{"32, one of 190 ms, in the pass", 0, 31, longVideoTokens, 395},
		{"32, one of 190 ms, beside", 1, 31, longVideoTokens, 172},
	} {
		fmt.Fprintf(out, "| %s | %d |", c.name, c.published)
		for _, order := range []struct {
			prefill sim.Prefill
			last    bool
		}{{prefillByTokens(), false}, {prefillByTokens(), true}, {prefillConstant(), false}} {
			at := 0
			if order.last {
				at = c.texts
			}
			all := make([]replay.Request, c.texts+1)
			for i := range all {
				all[i] = tableRequest(i, 0, 0, 0)
			}
			all[at] = tableRequest(at, 0, media.Video, c.video)
			j := run(t, tableConfig(order.prefill, c.encoders, 0, 50, 190), all)
			checkAnswers(t, all, j)
			var video, texts time.Duration
			for i := range j.samples {
				if s := &j.samples[i]; s.Index == at {
					video = s.First
				} else {
					texts += s.First
				}
			}
			fmt.Fprintf(out, " %d |", video.Round(time.Millisecond).Milliseconds())
			if c.texts > 0 {
				fmt.Fprintf(out, " %d |", (texts / time.Duration(c.texts)).Round(time.Millisecond).Milliseconds())
			} else {
				fmt.Fprint(out, " |")
			}
		}
		fmt.Fprintln(out)
	}
}

// mixRequests is how many requests a run of a mix has.
const mixRequests = 1000

// drawMix draws a workload with these shares of pictures and videos, in percent, at a mean rate of requests a second.
func drawMix(pictures, videos int, rate float64) []replay.Request {
	rng := splitmix.Source(1)
	all := make([]replay.Request, mixRequests)
	at := 0.0 // seconds
	for i := range all {
		at -= exact.Ln(float64(rng.Next()>>11+1)/(1<<53)) / rate
		sent := time.Duration(float64(at * float64(time.Second)))
		switch n := rng.Below(100); {
		case n < pictures:
			all[i] = tableRequest(i, sent, media.Image, pictureTokens)
		case n < pictures+videos:
			all[i] = tableRequest(i, sent, media.Video, videoTokens)
		default:
			all[i] = tableRequest(i, sent, 0, 0)
		}
	}
	return all
}

// runMix returns the figures of a run.
func runMix(t *testing.T, encoders int, all []replay.Request) replay.Row {
	r := replay.NewRecorder(replay.RecorderConfig{})
	if err := Run(t.Context(), tableConfig(prefillByTokens(), encoders, 4.8, 48.7, 187), &requests{all: all}, r); err != nil {
		t.Fatal(err)
	}
	row := r.Run().Row
	if row.Errors > 0 || row.Requests != len(all) {
		t.Fatalf("%d requests, %d errors: %v", row.Requests, row.Errors, row.ErrorKinds)
	}
	return row
}

// tableMixes has how many requests of each mix a worker can answer in a second, when all are there, and the times to the
// first token at 0.8 of what it can with its encoder in the pass.
func tableMixes(t *testing.T, out *strings.Builder) {
	fmt.Fprint(out, "| texts, pictures, videos | published/s | TTFT | in the pass/s | beside/s | TTFT, in the pass | TTFT, beside |\n"+
		"|---|---|---|---|---|---|---|\n")
	var base [2]float64
	for _, c := range []struct {
		pictures, videos int
		rate             float64
		p50, p99         int
	}{
		{0, 0, 48.2, 82, 145},
		{10, 0, 45.1, 85, 162},
		{10, 10, 38.7, 91, 245},
		{30, 20, 24.3, 128, 387},
		{0, 100, 6.8, 195, 523},
	} {
		fmt.Fprintf(out, "| %d, %d, %d %% | %.1f | %d, %d |", 100-c.pictures-c.videos, c.pictures, c.videos, c.rate, c.p50, c.p99)
		var most [2]float64
		for encoders := range 2 {
			most[encoders] = runMix(t, encoders, drawMix(c.pictures, c.videos, 1e6)).RequestsPerSecond
			if c.pictures+c.videos == 0 {
				base[encoders] = most[encoders]
			}
			fmt.Fprintf(out, " %.1f (%+.1f %%) |", most[encoders], 100*(most[encoders]/base[encoders]-1))
		}
		for encoders := range 2 {
			row := runMix(t, encoders, drawMix(c.pictures, c.videos, float64(0.8*most[0])))
			fmt.Fprintf(out, " %.0f, %.0f |", row.TTFT.P50, row.TTFT.P99)
		}
		fmt.Fprintln(out)
	}
}

// batchTimes are the published times of batches of one encoder, in milliseconds.
var batchTimes = []sim.EncoderPoint{{Tokens: 1, Millis: 4.8}, {Tokens: 4, Millis: 7.2}, {Tokens: 8, Millis: 10.1}, {Tokens: 16, Millis: 16.3}, {Tokens: 32, Millis: 29.7}}

// batchDuration is the time of a batch of n pictures: straight lines between the published ones.
func batchDuration(n int) time.Duration {
	timing := sim.Timing{Encoder: batchTimes}
	return time.Duration(float64(timing.EncodeMillis(media.Image, n) * float64(time.Millisecond)))
}

// batchFigures are those of a run of the encoder.
type batchFigures struct {
	took       time.Duration // from the first submit to the last rows
	runs       int
	mean, last time.Duration // from submit to rows: mean, and 99th percentile
}

// encodeBatches drives core/encode with one encoder and pictures which come at the given times.
func encodeBatches(t *testing.T, maxBatch int, arrivals []time.Duration) (f batchFigures) {
	const size = pictureTokens * 8192
	m, err := encode.New(encode.Config{
		MaxJobs: 32, MaxBatch: maxBatch, BatchWait: 5 * time.Millisecond, MaxAttempts: 1,
		CPUBudget: 1 << 50, StagingBudget: 1 << 50, MaxObjects: 1 << 20,
	})
	if err != nil {
		t.Fatal(err)
	}
	actions, err := m.AddEncoder(0, 1, encode.EncoderLimits{Runs: 1}, nil)
	var (
		now, end kv.Mono
		running  *encode.Action
		waits    []time.Duration
		sub      = encode.Submission{
			Placeholders: []encode.Placeholder{{Kind: uint8(media.Image)}},
			Objects:      []encode.SubmittedObject{{Kind: uint8(media.Image), Tokens: pictureTokens, Bytes: size}},
		}
		sent = map[encode.RequestID]kv.Mono{}
	)
	for next := 0; ; {
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range actions {
			switch a.Kind {
			case encode.RunBatch:
				running, end = &a, now.Add(batchDuration(len(a.Items)))
				f.runs++
			case encode.RequestReady:
				waits = append(waits, now.Sub(sent[a.Request]))
				if actions, err = m.CancelRequest(now, a.Request, nil); err != nil || slices.ContainsFunc(actions, func(a encode.Action) bool { return a.Kind == encode.RunBatch }) {
					t.Fatal("a cancel has started a run: ", err)
				}
			}
		}
		switch {
		case next < len(arrivals) && (running == nil || kv.Mono(arrivals[next]) < end):
			now = kv.Mono(arrivals[next])
			var id encode.RequestID
			id, actions, err = m.SubmitRequest(now, sub, nil)
			sent[id] = now
			next++
		case running != nil:
			now = end
			results := slices.Repeat([]encode.Result{{Tokens: pictureTokens, Bytes: size}}, len(running.Items))
			run := running.Run
			running = nil
			actions, err = m.FinishRun(now, run, results, nil)
		default:
			if len(waits) != len(arrivals) {
				t.Fatalf("%d of %d pictures were encoded", len(waits), len(arrivals))
			}
			f.took = time.Duration(now)
			for _, w := range waits {
				f.mean += w / time.Duration(len(waits))
			}
			slices.Sort(waits)
			f.last = waits[len(waits)*99/100]
			return f
		}
	}
}

// tableBatches has batches of pictures: when all are there, and when they come one after another.
func tableBatches(t *testing.T, out *strings.Builder) {
	fmt.Fprint(out, "| at most | published: batch, each | all: each | pictures/s | 150/s: batch | mean, p99 | 400/s: batch | mean, p99 |\n"+
		"|---|---|---|---|---|---|---|---|\n")
	const pictures = 20_000
	for _, p := range batchTimes {
		at := encodeBatches(t, p.Tokens, make([]time.Duration, 1024))
		each := at.took.Seconds() / 1024
		fmt.Fprintf(out, "| %d | %.1f, %.2f ms | %.2f ms | %.0f |", p.Tokens, p.Millis, p.Millis/float64(p.Tokens), 1000*each, 1/each)
		for _, rate := range []float64{150, 400} {
			if rate*each > 1 {
				fmt.Fprint(out, " too many | |")
				continue
			}
			rng := splitmix.Source(2)
			arrivals := make([]time.Duration, pictures)
			seconds := 0.0
			for i := range arrivals {
				seconds -= exact.Ln(float64(rng.Next()>>11+1)/(1<<53)) / rate
				arrivals[i] = time.Duration(float64(seconds * float64(time.Second)))
			}
			f := encodeBatches(t, p.Tokens, arrivals)
			fmt.Fprintf(out, " %.1f | %.1f, %.1f ms |", float64(pictures)/float64(f.runs), 1000*f.mean.Seconds(), 1000*f.last.Seconds())
		}
		fmt.Fprintln(out)
	}
}
