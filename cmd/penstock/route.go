package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"penstock/core/route"
	"penstock/internal/engine"
)

// maxPromptFile bounds a prompt file, in bytes.
const maxPromptFile = 32 << 20

type routeFlags struct {
	serverTarget
	model, messages, tokens string
	mode                    string
	raw, explain, asJSON    bool
	weight, temperature     float64
}

func newRouteCommand() *cobra.Command {
	var f routeFlags
	cmd := &cobra.Command{
		Use:   "route [TEXT]",
		Short: "Ask where a prompt would go and why, without sending it",
		Long: `Ask a running router which worker it would choose for a prompt and why. The prompt is
one user message, or a plain text as /v1/completions takes it, or a conversation (a
whole request to /v1/chat/completions, tools and all, or its messages alone) or token
ids from a file. Nothing is sent to a worker and nothing is reserved. A frontend in front of router
processes asks them, and each answers which worker it would choose.

With --explain there is a row for each worker that could take it, WORKER and RANK. ROLE
is shown where it is not aggregated. A column of zeros is left out, unless it always
matters. docs/router-api.md has the JSON field of each column.

In blocks of the prompt: DEVICE, HOST, DISK, POOL what the worker has of it in each tier
(of these PREDICTED: sent there, told by no event yet), ATTACHABLE in pools that it can
attach, LABELLED as moe_query asks. REQUESTS are those there now (OF OTHERS: sent by
other routers). CHANCE is the probability of the worker, FEED the state of its events.

In mode kv: PREFILL TOKENS are what the worker would have to compute, of them QUEUED for
other requests; PREFILL is that in blocks, FETCH what bringing slower tiers to the device
costs, DECODE the blocks that would be active. AFFINITY is what is preferred BY LABELS,
BY EXPERTS, BY SESSION, BY ADAPTER (LoRA), BY EMBEDDINGS and BY TRANSFER, from a prefill
worker on the same host. COST is in blocks, by the formula above the table.

In mode time the terms are milliseconds, and COST is their sum: WAIT for the prefills
before it, UNHEARD for those which other routers probably sent just now, its own PREFILL,
EVICTED what others will compute again, BACKLOG by how much it delays later requests
while prefills are queued, a STEP, and with small weights the time of its ANSWER,
by how much its prefill STALLED and its blocks SLOWED answers there, and how much later
prefills INTERRUPTED its own. PREFERENCE and COPY, of a prefix that many requests share,
are below 0. ENCODED are tokens of media whose embeddings the worker holds. TTFT and ITL
are the predicted times, which are no terms; MISSES says that they exceed the targets.`,
		Example: `  penstock route "Where would this go?"
  penstock route --raw "Once upon a time"
  penstock route --explain --messages conversation.json   # or a whole request, its nvext too
  penstock route --tokens ids.json --json`,
		Args: checkArgs(requireOneText),
		RunE: func(cmd *cobra.Command, args []string) error { return f.runRoute(cmd, args) },
	}
	addTargetFlags(cmd, &f.serverTarget)
	cmd.Flags().StringVar(&f.model, "model", "", "model to route for; may be left out where there is only one, or the request names it")
	cmd.Flags().StringVar(&f.messages, "messages", "", "file with a chat request or an array of messages as JSON, - for standard input")
	cmd.Flags().StringVar(&f.tokens, "tokens", "", "file with a JSON array of token ids, - for standard input")
	cmd.Flags().BoolVar(&f.raw, "raw", false, "TEXT is the whole prompt: no chat template around it")
	cmd.Flags().BoolVar(&f.explain, "explain", false, "show every candidate with every term of its cost")
	cmd.Flags().Float64Var(&f.weight, "kv-overlap-score-weight", 0, "weight to use for this question instead of the configured one")
	cmd.Flags().StringVar(&f.mode, "router-mode", "", "mode to use for this question instead of the configured one, such as time")
	cmd.Flags().Float64Var(&f.temperature, "router-temperature", 0, "temperature to use for this question instead of the configured one")
	cmd.Flags().BoolVar(&f.asJSON, "json", false, "print JSON")
	return cmd
}

// requireOneText refuses several arguments, which a shell makes of a text without quotes.
func requireOneText(_ *cobra.Command, args []string) error {
	if len(args) > 1 {
		return fmt.Errorf("%d texts: put quotes around one", len(args))
	}
	return nil
}

// routeExplanation is the response of /v1/router/explain.
type routeExplanation struct {
	Decision *struct {
		WorkerID      uint64  `json:"worker_id"`
		DPRank        uint32  `json:"dp_rank"`
		OverlapBlocks int     `json:"overlap_blocks"`
		BlockSize     int     `json:"block_size"`
		Mode          string  `json:"mode"`
		Cost          float64 `json:"cost"`
	} `json:"decision"`
	Reason string `json:"reason"` // why there is no decision
	Waits  *struct {
		Requests int `json:"waiting_requests"`
	} `json:"would_wait"`
	Targets *struct {
		TTFT    float64 `json:"ttft_ms"`
		ITL     float64 `json:"itl_ms"`
		Met     bool    `json:"met"`
		OnMiss  string  `json:"on_miss"`
		Refusal string  `json:"refusal"`
	} `json:"targets"`
	OverlapWeight float64      `json:"overlap_score_weight"`
	Temperature   float64      `json:"router_temperature"`
	QueueWeight   float64      `json:"queue_weight"`
	NearCost      float64      `json:"near_cost"`
	PromptTokens  int          `json:"prompt_tokens"`
	PromptBlocks  int          `json:"prompt_blocks"`
	TextOnly      string       `json:"text_only"` // why media are ignored, if they are
	Media         []shownMedia `json:"media"`
	Session       *struct {
		WorkerID uint64 `json:"worker_id"`
		DPRank   uint32 `json:"dp_rank"`
	} `json:"session_worker"`
	Candidates []candidateRow `json:"candidates"`
	Excluded   []struct {
		WorkerID uint64 `json:"worker_id"`
		DPRank   uint32 `json:"dp_rank"`
		Reason   string `json:"reason"`
	} `json:"excluded"`
	// Prefill says which decode worker would decide where the prompt is computed.
	Prefill *routePrefill `json:"prefill"`
	// Behind holds the responses of the candidates which are router processes.
	Behind []struct {
		Router uint64            `json:"router"`
		Answer *routeExplanation `json:"answer"`
		Error  string            `json:"error"`
	} `json:"behind"`
}

// routePrefill is the decode worker which decides where the prompt is computed, and what it is asked for; nil is as it has
// it.
type routePrefill struct {
	WorkerID              uint64  `json:"worker_id"`
	DPRank                uint32  `json:"dp_rank"`
	DisaggPolicy          *string `json:"disagg_policy"`
	MaxLocalPrefillLength *int    `json:"max_local_prefill_length"`
	MaxPrefillQueueSize   *int    `json:"max_prefill_queue_size"`
}

// describe says which worker decides, and by what.
func (p *routePrefill) describe() string {
	policy, local, queue := asTheWorkerHasIt, asTheWorkerHasIt, asTheWorkerHasIt
	if p.DisaggPolicy != nil {
		policy = *p.DisaggPolicy
	}
	if p.MaxLocalPrefillLength != nil {
		local = strconv.Itoa(*p.MaxLocalPrefillLength)
	}
	if p.MaxPrefillQueueSize != nil {
		queue = strconv.Itoa(*p.MaxPrefillQueueSize)
	}
	return fmt.Sprintf("worker %d decides where the prompt is computed when it gets the request: disagg-policy %s, max-local-prefill-length %s, max-prefill-queue-size %s",
		p.WorkerID, policy, local, queue)
}

const asTheWorkerHasIt = "as it has it"

// shownMedia is one image, video or sound in a prompt.
type shownMedia struct {
	Kind    string `json:"kind"`
	Part    string `json:"part"`
	Key     string `json:"key"`
	Start   int    `json:"start"`
	Tokens  int    `json:"tokens"`
	Width   int    `json:"width"`
	Height  int    `json:"height"`
	Frames  int    `json:"frames"`
	Samples int    `json:"samples"`
}

// describeSize describes the media's size as far as it is known.
func (s *shownMedia) describeSize() string {
	switch {
	case s.Samples > 0:
		return fmt.Sprintf(" of %d samples", s.Samples)
	case s.Frames > 0:
		return fmt.Sprintf(" of %d frames of %d by %d pixels", s.Frames, s.Width, s.Height)
	case s.Width > 0:
		return fmt.Sprintf(" of %d by %d pixels", s.Width, s.Height)
	}
	return ""
}

type candidateRow struct {
	WorkerID uint64 `json:"worker_id"`
	DPRank   uint32 `json:"dp_rank"`
	Overlap  struct {
		Device int `json:"device"`
		Host   int `json:"host"`
		Disk   int `json:"disk"`
		Pool   int `json:"pool"`
	} `json:"overlap_blocks"`
	Role            string  `json:"role"`
	Cache           string  `json:"cache"`
	Predicted       int     `json:"predicted_blocks"`
	Attachable      int     `json:"cxl_accessible_scores"`
	Labelled        int     `json:"moe_scores"`
	PrefillTokens   int     `json:"prefill_tokens"`
	QueuedTokens    int     `json:"queued_tokens"`
	PrefillBlocks   float64 `json:"prefill_blocks"`
	FetchBlocks     float64 `json:"fetch_blocks"`
	DecodeBlocks    int     `json:"decode_blocks"`
	ActiveRequests  int     `json:"active_requests"`
	OthersRequests  int     `json:"others_requests"`
	Affinity        float64 `json:"affinity"`
	LabelAffinity   float64 `json:"label_affinity"`
	ExpertAffinity  float64 `json:"expert_affinity"`
	SessionAffinity float64 `json:"session_affinity"`
	AdapterAffinity float64 `json:"adapter_affinity"`
	// EmbeddingAffinity is for the EmbeddingTokens of media whose embeddings the worker holds.
	EmbeddingAffinity float64 `json:"embedding_affinity"`
	EmbeddingTokens   int     `json:"embedding_tokens"`
	TransferAffinity  float64 `json:"transfer_affinity"`
	Cost              float64 `json:"cost"`
	Probability       float64 `json:"probability"`
	// TTFT and ITL are the predicted times, in ms. Misses says that they exceed the targets.
	TTFT   float64 `json:"predicted_ttft_ms"`
	ITL    float64 `json:"predicted_itl_ms"`
	Misses bool    `json:"misses_targets"`
	// Time has the terms of the cost in mode time, in ms.
	Time *route.TimeCost `json:"time_ms"`
}

func (f *routeFlags) runRoute(cmd *cobra.Command, args []string) error {
	q, err := f.buildQuery(cmd, args)
	if err != nil {
		return err
	}
	c, err := f.newClient()
	if err != nil {
		return err
	}
	if f.model == "" && q["model"] == nil {
		if f.model, err = c.findOnlyModel(cmd.Context()); err != nil {
			return err
		}
	}
	if f.model != "" {
		if err := q.setMember("model", f.model); err != nil {
			return err
		}
	}
	var raw json.RawMessage
	if err := c.postJSON(cmd.Context(), "/v1/router/explain", q.encodeObject(), &raw); err != nil {
		return err
	}
	if f.asJSON {
		_, err := fmt.Fprintln(cmd.OutOrStdout(), string(raw))
		return err
	}
	var e routeExplanation
	if err := json.Unmarshal(raw, &e); err != nil {
		return fmt.Errorf("answer of the router: %w", err)
	}
	return e.printText(cmd.OutOrStdout(), f.explain)
}

// buildQuery builds the request body from the arguments and flags.
func (f *routeFlags) buildQuery(cmd *cobra.Command, args []string) (jsonMembers, error) {
	given := len(args)
	for _, s := range []string{f.messages, f.tokens} {
		if s != "" {
			given++
		}
	}
	if given != 1 {
		return nil, usageError(errors.New("give one prompt: TEXT, --messages FILE or --tokens FILE"))
	}
	if f.raw && len(args) == 0 {
		return nil, usageError(errors.New("--raw goes with TEXT; messages always have the chat template, token ids never"))
	}
	q, err := f.promptMembers(cmd.InOrStdin(), args)
	if err != nil {
		return nil, usageError(err)
	}
	override := map[string]any{}
	if cmd.Flags().Changed("kv-overlap-score-weight") {
		override["overlap_score_weight"] = f.weight
	}
	if cmd.Flags().Changed("router-temperature") {
		override["router_temperature"] = f.temperature
	}
	if cmd.Flags().Changed("router-mode") {
		override["router_mode"] = f.mode
	}
	if len(override) > 0 {
		return q, q.setMember("router_config_override", override)
	}
	return q, nil
}

// promptMembers returns the members which contain the prompt.
func (f *routeFlags) promptMembers(stdin io.Reader, args []string) (jsonMembers, error) {
	q := jsonMembers{}
	switch {
	case f.messages != "":
		data, err := readJSONFile(stdin, f.messages)
		if err != nil {
			return nil, err
		}
		if data[0] != '{' {
			return jsonMembers{"messages": data}, nil
		}
		if json.Unmarshal(data, &q) != nil {
			return nil, fmt.Errorf("%s: want a chat request or an array of messages", f.messages)
		}
		return q, nil
	case f.tokens != "":
		data, err := readJSONFile(stdin, f.tokens)
		return jsonMembers{"token_ids": data}, err
	case f.raw:
		return q, q.setMember("prompt", args[0])
	}
	return q, q.setMember("messages", []map[string]string{{"role": "user", "content": args[0]}})
}

// readJSONFile returns the JSON in a file, without surrounding white space.
func readJSONFile(stdin io.Reader, path string) (json.RawMessage, error) {
	in := stdin
	if path != "-" {
		file, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		defer file.Close()
		in = file
	}
	data, err := io.ReadAll(io.LimitReader(in, maxPromptFile+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxPromptFile {
		return nil, fmt.Errorf("%s: larger than %d bytes", path, maxPromptFile)
	}
	if !json.Valid(data) {
		return nil, fmt.Errorf("%s: not valid JSON; want an array, or with --messages a whole chat request", path)
	}
	return bytes.TrimSpace(data), nil
}

// jsonMembers are the members of a JSON object. Members from a file are sent unchanged: chat templates print
// tools in the given order and form.
type jsonMembers map[string]json.RawMessage

func (m jsonMembers) setMember(key string, v any) error {
	data, err := json.Marshal(v)
	m[key] = data
	return err
}

// encodeObject returns the object as JSON.
func (m jsonMembers) encodeObject() json.RawMessage {
	out := []byte{'{'}
	for _, key := range slices.Sorted(maps.Keys(m)) {
		if len(out) > 1 {
			out = append(out, ',')
		}
		name, _ := json.Marshal(key) // encoding a string cannot fail
		out = append(append(out, name...), ':')
		out = append(out, m[key]...)
	}
	return append(out, '}')
}

// printText writes the decision and, if all is set, every candidate with its terms.
func (e *routeExplanation) printText(w io.Writer, all bool) error {
	if len(e.Behind) > 0 {
		return e.printRouterAnswers(w, all)
	}
	if d := e.Decision; d != nil {
		fmt.Fprintf(w, "worker %d rank %d: holds %d of the prompt's %d full blocks (%d tokens, blocks of %d); mode %s, cost %.2f\n",
			d.WorkerID, d.DPRank, d.OverlapBlocks, e.PromptBlocks, e.PromptTokens, d.BlockSize, d.Mode, d.Cost)
	} else {
		fmt.Fprintf(w, "no worker: %s\n", e.Reason)
	}
	if e.Waits != nil {
		fmt.Fprintf(w, "it would wait in the router until a worker has less to do (--router-queue-threshold, --router-target-miss); %d wait now\n", e.Waits.Requests)
	}
	if t := e.Targets; t != nil {
		fmt.Fprintf(w, "targets:%s; %s\n", formatTargets(t.TTFT, t.ITL), map[bool]string{true: "a worker meets them", false: "no worker meets them"}[t.Met])
		if t.Refusal != "" {
			fmt.Fprintf(w, "it would be refused: %s\n", t.Refusal)
		}
	}
	if p := e.Prefill; all && p != nil {
		fmt.Fprintln(w, p.describe())
	}
	if e.TextOnly != "" {
		fmt.Fprintf(w, "only the text before what it shows counts: %s\n", e.TextOnly)
	}
	if all {
		for i := range e.Media {
			m := &e.Media[i]
			what, where := m.Kind+m.describeSize(), ""
			if m.Part == "" { // the engine which made the prompt reports neither
				what = "an object"
			} else {
				where = " (" + m.Part + ")"
			}
			fmt.Fprintf(w, "shows: %s, key %s, %d tokens from %d on%s\n", what, m.Key, m.Tokens, m.Start, where)
		}
	}
	if all && len(e.Candidates) > 0 {
		if err := e.printCandidates(w); err != nil {
			return err
		}
	}
	if all || e.Decision == nil {
		for _, x := range e.Excluded {
			fmt.Fprintf(w, "excluded: worker %d rank %d: %s\n", x.WorkerID, x.DPRank, x.Reason)
		}
	}
	return nil
}

// printRouterAnswers writes the responses of the candidate router processes, which choose the worker.
func (e *routeExplanation) printRouterAnswers(w io.Writer, all bool) error {
	for i := range e.Behind {
		b := &e.Behind[i]
		fmt.Fprintf(w, "through router %d", b.Router)
		for j := range e.Candidates {
			if c := &e.Candidates[j]; c.WorkerID == b.Router {
				fmt.Fprintf(w, " (%.0f%%)", 100*c.Probability)
			}
		}
		if b.Answer == nil {
			fmt.Fprintf(w, ": not known: %s\n", printable(b.Error))
			continue
		}
		fmt.Fprint(w, ": ")
		if err := b.Answer.printText(w, all); err != nil {
			return err
		}
		if all && i+1 < len(e.Behind) {
			fmt.Fprintln(w)
		}
	}
	if !all {
		return nil
	}
	for _, x := range e.Excluded {
		fmt.Fprintf(w, "excluded: router %d: %s\n", x.WorkerID, x.Reason)
	}
	return nil
}

// formatTargets returns the targets which are not 0.
func formatTargets(ttft, itl float64) (out string) {
	if ttft > 0 {
		out += fmt.Sprintf(" %g ms to the first token", ttft)
	}
	if itl > 0 {
		out += fmt.Sprintf(" %g ms between tokens", itl)
	}
	return out
}

// printCandidates writes every term of each candidate's cost: overlap, load, affinity and the result. It
// leaves out optional columns which are zero for all candidates.
func (e *routeExplanation) printCandidates(w io.Writer) error {
	queued := ""
	if e.QueueWeight != 1 {
		queued = fmt.Sprintf(" + %g × queued", e.QueueWeight-1)
	}
	if e.Candidates[0].Time != nil {
		return e.printTimeCosts(w)
	}
	if d := e.Decision; d != nil && d.Mode != "kv" {
		fmt.Fprintf(w, "\nmode %s goes by neither costs nor caches; for comparison:\n", d.Mode)
	}
	fmt.Fprintf(w, "\ncost = %g × (prefill%s + fetch) + decode − affinity, in blocks; the least wins (temperature %g", e.OverlapWeight, queued, e.Temperature)
	if e.NearCost > 0 {
		fmt.Fprintf(w, ", costs within %g count as equal", e.NearCost)
	}
	fmt.Fprintln(w, ")")
	if s := e.Session; s != nil {
		fmt.Fprintf(w, "the session is at worker %d rank %d\n", s.WorkerID, s.DPRank)
	}
	fmt.Fprintln(w)
	return e.printColumns(w, blockColumns)
}

// printTimeCosts writes the terms of mode time of each candidate.
func (e *routeExplanation) printTimeCosts(w io.Writer) error {
	fmt.Fprintf(w, "\nthe predicted time in ms, for the request and for others; the least wins (temperature %g", e.Temperature)
	if e.NearCost > 0 {
		fmt.Fprintf(w, ", costs within %g count as equal", e.NearCost)
	}
	fmt.Fprintln(w, ")")
	if s := e.Session; s != nil {
		fmt.Fprintf(w, "the session is at worker %d rank %d\n", s.WorkerID, s.DPRank)
	}
	fmt.Fprintln(w)
	return e.printColumns(w, timeColumns)
}

// printColumns writes a table of the candidates, without optional columns which are zero for all of them.
func (e *routeExplanation) printColumns(w io.Writer, columns []candidateColumn) error {
	columns = slices.DeleteFunc(slices.Clone(columns), func(col candidateColumn) bool {
		return !col.always && !slices.ContainsFunc(e.Candidates, func(c candidateRow) bool { return col.value(&c) != "0" })
	})
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	for _, col := range columns {
		fmt.Fprint(tw, col.name, "\t")
	}
	fmt.Fprintln(tw)
	for i := range e.Candidates {
		for _, col := range columns {
			fmt.Fprint(tw, col.value(&e.Candidates[i]), "\t")
		}
		fmt.Fprintln(tw)
	}
	return tw.Flush()
}

// candidateColumn is a column of the table of candidates. Unless always is set, it is left out if its value
// is 0 for all.
type candidateColumn struct {
	name   string
	value  func(*candidateRow) string
	always bool
}

// cacheColumns begin the tables of all modes.
var cacheColumns = []candidateColumn{
	{"WORKER", func(c *candidateRow) string { return strconv.FormatUint(c.WorkerID, 10) }, true},
	{"RANK", func(c *candidateRow) string { return fmt.Sprint(c.DPRank) }, true},
	{"ROLE", (*candidateRow).specialRole, false},
	{"DEVICE", func(c *candidateRow) string { return fmt.Sprint(c.Overlap.Device) }, true},
	{"HOST", func(c *candidateRow) string { return fmt.Sprint(c.Overlap.Host) }, false},
	{"DISK", func(c *candidateRow) string { return fmt.Sprint(c.Overlap.Disk) }, false},
	{"POOL", func(c *candidateRow) string { return fmt.Sprint(c.Overlap.Pool) }, false},
	{"PREDICTED", func(c *candidateRow) string { return fmt.Sprint(c.Predicted) }, false},
}

// blockColumns are the columns of all modes but time.
var blockColumns = slices.Concat(cacheColumns, []candidateColumn{
	{"ATTACHABLE", func(c *candidateRow) string { return fmt.Sprint(c.Attachable) }, false},
	{"LABELLED", func(c *candidateRow) string { return fmt.Sprint(c.Labelled) }, false},
	{"PREFILL TOKENS", func(c *candidateRow) string { return fmt.Sprint(c.PrefillTokens) }, true},
	{"QUEUED", func(c *candidateRow) string { return fmt.Sprint(c.QueuedTokens) }, false},
	{"PREFILL", func(c *candidateRow) string { return fmt.Sprintf("%.2f", c.PrefillBlocks) }, true},
	{"FETCH", func(c *candidateRow) string { return formatCost(c.FetchBlocks) }, false},
	{"DECODE", func(c *candidateRow) string { return fmt.Sprint(c.DecodeBlocks) }, true},
	{"REQUESTS", func(c *candidateRow) string { return fmt.Sprint(c.ActiveRequests) }, true},
	{"OF OTHERS", func(c *candidateRow) string { return fmt.Sprint(c.OthersRequests) }, false},
	{"BY LABELS", func(c *candidateRow) string { return formatCost(c.LabelAffinity) }, false},
	{"BY EXPERTS", func(c *candidateRow) string { return formatCost(c.ExpertAffinity) }, false},
	{"BY SESSION", func(c *candidateRow) string { return formatCost(c.SessionAffinity) }, false},
	{"BY ADAPTER", func(c *candidateRow) string { return formatCost(c.AdapterAffinity) }, false},
	{"BY EMBEDDINGS", func(c *candidateRow) string { return formatCost(c.EmbeddingAffinity) }, false},
	{"BY TRANSFER", func(c *candidateRow) string { return formatCost(c.TransferAffinity) }, false},
	{"AFFINITY", func(c *candidateRow) string { return formatCost(c.Affinity) }, true},
	{"COST", func(c *candidateRow) string { return fmt.Sprintf("%.2f", c.Cost) }, true},
	{"CHANCE", func(c *candidateRow) string { return fmt.Sprintf("%.0f%%", 100*c.Probability) }, true},
	{"FEED", func(c *candidateRow) string { return c.Cache }, true},
})

// timeColumns are the columns of mode time.
var timeColumns = slices.Concat(cacheColumns, []candidateColumn{
	{"ENCODED", func(c *candidateRow) string { return fmt.Sprint(c.EmbeddingTokens) }, false},
	{"REQUESTS", func(c *candidateRow) string { return fmt.Sprint(c.ActiveRequests) }, true},
	{"OF OTHERS", func(c *candidateRow) string { return fmt.Sprint(c.OthersRequests) }, false},
	{"WAIT", func(c *candidateRow) string { return formatCost(c.Time.Wait) }, true},
	{"UNHEARD", func(c *candidateRow) string { return formatCost(c.Time.Unheard) }, false},
	{"PREFILL", func(c *candidateRow) string { return formatCost(c.Time.Own) }, true},
	{"EVICTED", func(c *candidateRow) string { return formatCost(c.Time.Evict) }, false},
	{"BACKLOG", func(c *candidateRow) string { return formatCost(c.Time.Backlog) }, false},
	{"STEP", func(c *candidateRow) string { return formatCost(c.Time.Step) }, true},
	{"ANSWER", func(c *candidateRow) string { return formatCost(c.Time.Decode) }, true},
	{"STALLED", func(c *candidateRow) string { return formatCost(c.Time.Stall) }, false},
	{"SLOWED", func(c *candidateRow) string { return formatCost(c.Time.Slow) }, false},
	{"INTERRUPTED", func(c *candidateRow) string { return formatCost(c.Time.Interrupt) }, false},
	{"TTFT", func(c *candidateRow) string { return fmt.Sprintf("%.2f", c.TTFT) }, true},
	{"ITL", func(c *candidateRow) string { return fmt.Sprintf("%.2f", c.ITL) }, true},
	{"MISSES", func(c *candidateRow) string { return map[bool]string{true: "yes", false: "0"}[c.Misses] }, false},
	{"PREFERENCE", func(c *candidateRow) string { return formatCost(-c.Time.Affinity) }, false},
	{"COPY", func(c *candidateRow) string { return formatCost(-c.Time.Copy) }, false},
	{"COST", func(c *candidateRow) string { return fmt.Sprintf("%.2f", c.Cost) }, true},
	{"CHANCE", func(c *candidateRow) string { return fmt.Sprintf("%.0f%%", 100*c.Probability) }, true},
	{"FEED", func(c *candidateRow) string { return c.Cache }, true},
})

// specialRole returns the role of a worker; 0 if it is aggregated, or of a router of an earlier build.
func (c *candidateRow) specialRole() string {
	if c.Role == "" || c.Role == engine.RoleAggregated.String() {
		return "0"
	}
	return printable(c.Role)
}

// formatCost formats v with two decimals, and 0 as "0".
func formatCost(v float64) string {
	if v == 0 {
		return "0"
	}
	return fmt.Sprintf("%.2f", v)
}
