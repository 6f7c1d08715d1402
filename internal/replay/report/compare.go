package report

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"unicode/utf8"

	"penstock/internal/replay"
)

// Comparison describes how a result B differs from a result A.
type Comparison struct {
	// Pairs are the rows in both, in the order of A.
	Pairs []Pair `json:"rows"`
	// OnlyA and OnlyB name the unmatched rows.
	OnlyA []string `json:"only_a,omitempty"`
	OnlyB []string `json:"only_b,omitempty"`
	// Remarks are what a reader must know before trusting the differences.
	Remarks []string `json:"remarks"`
}

// Pair is a row of A matched with one of B.
type Pair struct {
	Policy  string   `json:"policy"` // of A
	Workers int      `json:"workers"`
	Figures []Change `json:"figures"`
	Remarks []string `json:"remarks,omitempty"`

	name string // for humans
}

// Change is the change of one figure. Times are in milliseconds, shares from 0 to 1.
type Change struct {
	Name string  `json:"name"`
	A    float64 `json:"a"`
	B    float64 `json:"b"`
	// Difference is B - A, Ratio B / A; there is no ratio if A is 0.
	Difference float64  `json:"difference"`
	Ratio      *float64 `json:"ratio,omitempty"`
	// Verdict is "better", "worse" or "same" for B; "" if neither direction is better.
	Verdict string `json:"verdict,omitempty"`

	figure figure
}

// percentileResolution is the relative difference which two equal percentiles of three significant digits can
// have: half a unit of the last digit each.
const percentileResolution = 0.002

// minTailCount is the number of responses which should lie above a compared percentile.
const minTailCount = 10

// Compare matches the rows of a and b by policy, number of workers and cache size, equal ones in their order;
// then the rest by policy and number of workers only. It compares each figure which both have. Two results of
// one row each always match: a replay with measurements of a server.
func Compare(a, b *replay.Result) *Comparison {
	c := &Comparison{Remarks: describeDifferences(a, b)}
	namesA, namesB := rowNames(a.Rows), rowNames(b.Rows)
	of := matchRows(a.Rows, b.Rows)
	for i, j := range of {
		if j < 0 {
			c.OnlyA = append(c.OnlyA, namesA[i])
			continue
		}
		p := compareRows(&a.Rows[i], &b.Rows[j])
		if p.name = namesA[i]; namesB[j] != p.name {
			p.name += " (A) and " + namesB[j] + " (B)"
		}
		c.Pairs = append(c.Pairs, p)
	}
	for j := range b.Rows {
		if !slices.Contains(of, j) {
			c.OnlyB = append(c.OnlyB, namesB[j])
		}
	}
	if len(c.Pairs) == 0 {
		c.Pairs = []Pair{}
		c.Remarks = append(c.Remarks, "No row of A has the policy and the number of workers of one of B: there is nothing to compare.")
	}
	c.Remarks = append(c.Remarks, "These are single runs, without error bars. Requests of one run wait for each other, so their number tells little about "+
		"how far another run would be off: repeat both with other seeds before believing a small difference.")
	return c
}

// matchRows returns for each row of a the index of its match in b, or -1.
func matchRows(a, b []replay.Row) []int {
	of := make([]int, len(a))
	if len(a) == 1 && len(b) == 1 {
		return of
	}
	taken := make([]bool, len(b))
	match := func(i int, same func(a, b *replay.Row) bool) {
		for j := range b {
			if !taken[j] && policyName(&a[i]) == policyName(&b[j]) && same(&a[i], &b[j]) {
				of[i], taken[j] = j, true
				return
			}
		}
	}
	for i := range a {
		of[i] = -1
		match(i, isSameCluster)
	}
	for i := range a {
		if of[i] < 0 {
			match(i, func(a, b *replay.Row) bool { return a.Workers == b.Workers })
		}
	}
	return of
}

// describeDifferences says how the two commands differ.
func describeDifferences(a, b *replay.Result) []string {
	said := []string{}
	if a.Command != b.Command {
		said = append(said, fmt.Sprintf("A is of %s, B of %s: one ran in virtual time, the other against a server.", sanitizeText(a.Command, nameLimit), sanitizeText(b.Command, nameLimit)))
	}
	if a.Version != b.Version {
		said = append(said, fmt.Sprintf("A was made by version %s, B by %s.", sanitizeText(a.Version, nameLimit), sanitizeText(b.Version, nameLimit)))
	}
	said = append(said, compareSettings(a, b)...)
	for i, notes := range [][]string{a.Notes, b.Notes} {
		for _, n := range notes {
			said = append(said, fmt.Sprintf("%c notes: %s", 'A'+i, sanitizeText(n, noteLimit)))
		}
	}
	return said
}

// compareSettings lists the settings which differ, the settings of A first. For two different commands it
// lists only settings given to both, since each command has its own.
func compareSettings(a, b *replay.Result) []string {
	value := func(of *replay.Result, name string) (string, bool) {
		i := slices.IndexFunc(of.Settings, func(s replay.Setting) bool { return s.Name == name })
		if i < 0 {
			return "not given", false
		}
		return sanitizeText(of.Settings[i].Value, settingLimit), true
	}
	var said []string
	named := map[string]bool{}
	for _, s := range slices.Concat(a.Settings, b.Settings) {
		x, inA := value(a, s.Name)
		y, inB := value(b, s.Name)
		switch {
		case named[s.Name], a.Command != b.Command && !(inA && inB):
		case s.Name == promptSeed && inA && inB:
			// It differs between runs unless the user fixes it.
			if x == y {
				said = append(said, "Both runs sent the same words: what the first one left in the caches was there for the second.")
			}
		case x != y:
			said = append(said, fmt.Sprintf("The setting %s differs: %s in A, %s in B.", sanitizeText(s.Name, nameLimit), x, y))
		}
		named[s.Name] = true
	}
	return said
}

// promptSeed is the setting of bench with the seed of the prompts' words.
const promptSeed = "prompt-seed"

func compareRows(a, b *replay.Row) Pair {
	p := Pair{Policy: a.Policy, Workers: a.Workers, Remarks: comparabilityRemarks(a, b)}
	for _, f := range allFigures() {
		x, inA := f.valueOf(a)
		y, inB := f.valueOf(b)
		if !inA || !inB || strings.HasPrefix(f.name, "goodput") && a.Goodput.SLO != b.Goodput.SLO {
			continue
		}
		c := Change{Name: f.name, A: x, B: y, Difference: y - x, Verdict: judgeChange(f, x, y), figure: f}
		if x != 0 {
			ratio := y / x
			c.Ratio = &ratio
		}
		p.Figures = append(p.Figures, c)
	}
	return p
}

// judgeChange judges the change from x to y.
func judgeChange(f figure, x, y float64) string {
	equal := x == y
	if f.unit == unitTime {
		equal = math.Abs(y-x) <= percentileResolution*math.Max(x, y)
	}
	switch {
	case f.better == neitherBetter:
		return ""
	case equal:
		return "same"
	case (y < x) == (f.better == lessBetter):
		return "better"
	}
	return "worse"
}

// comparabilityRemarks says why the figures of two rows may not be comparable.
func comparabilityRemarks(a, b *replay.Row) []string {
	var said []string
	add := func(format string, args ...any) { said = append(said, fmt.Sprintf(format, args...)) }
	for i, r := range []*replay.Row{a, b} {
		if r.Late {
			add("The client of %c was late: its times are not to be trusted.", 'A'+i)
		}
	}
	if a.BlockSize != b.BlockSize {
		add("Blocks had %s in A, %s in B.", formatTokens(a.BlockSize), formatTokens(b.BlockSize))
	}
	if a.Blocks != b.Blocks {
		add("Workers had %s in A, %s in B.", formatBlocks(a.Blocks), formatBlocks(b.Blocks))
	}
	if a.Requests != b.Requests {
		add("A sent %s, B %s: not the same workload.", formatPlural(a.Requests, "request", "requests"), formatPlural(b.Requests, "request", "requests"))
	} else if a.Errors == 0 && b.Errors == 0 && a.InputTokens != b.InputTokens {
		add("The prompts had %s tokens in A, %s in B: not the same workload.", formatInt(a.InputTokens), formatInt(b.InputTokens))
	}
	if failedA, failedB := failedShare(a), failedShare(b); math.Abs(failedA-failedB) > 0.01 {
		add("In A %s of the requests failed, in B %s. Times are those of whole answers, and who refuses more may look faster.", formatPercent(failedA), formatPercent(failedB))
	}
	if a.Ideal != nil && b.Ideal != nil && math.Abs(a.Ideal.SameCapacity.CachedShare-b.Ideal.SameCapacity.CachedShare) > 0.001 {
		add("A cache could have given %s in A, %s in B: prompts or the size of the caches differ.", formatPercent(a.Ideal.SameCapacity.CachedShare), formatPercent(b.Ideal.SameCapacity.CachedShare))
	}
	if a.Goodput != nil && b.Goodput != nil && a.Goodput.SLO != b.Goodput.SLO {
		add("Goodput is not compared: the objective was %s in A, %s in B.", describeSLO(a.Goodput.SLO), describeSLO(b.Goodput.SLO))
	} else if (a.Goodput == nil) != (b.Goodput == nil) {
		add("Goodput is not compared: only one of the two had an objective.")
	}
	if n := min(a.TTFT.Count, b.TTFT.Count); n < 100*minTailCount {
		add("With %s the p99 stands on the slowest %s: too few to compare it.", formatPlural(int(n), "answer", "answers"), formatInt((n+99)/100))
	}
	return said
}

func formatTokens(n int) string { return formatKnown(n, "token", "tokens") }
func formatBlocks(n int) string { return formatKnown(n, "block", "blocks") }

// formatKnown writes a number of things, where 0 means unknown.
func formatKnown(n int, one, many string) string {
	if n == 0 {
		return "an unknown number of " + many
	}
	return formatPlural(n, one, many)
}

func failedShare(r *replay.Row) float64 {
	if r.Requests == 0 {
		return 0
	}
	return float64(r.Errors) / float64(r.Requests)
}

// WriteJSON writes c in one line.
func (c *Comparison) WriteJSON(w io.Writer) error {
	data, err := json.Marshal(c)
	if err != nil {
		return fmt.Errorf("comparison json: %w", err)
	}
	_, err = w.Write(append(data, '\n'))
	return err
}

// WriteTable writes c for a terminal. Rarely needed figures are only in the JSON.
func (c *Comparison) WriteTable(w io.Writer) error {
	out := bufio.NewWriter(w)
	for _, p := range c.Pairs {
		fmt.Fprintf(out, "%s\n", p.name)
		writePair(out, &p)
		for _, s := range p.Remarks {
			fmt.Fprintf(out, "  ! %s\n", s)
		}
		fmt.Fprintln(out)
	}
	for _, only := range []struct{ in, names string }{{"A", strings.Join(c.OnlyA, "; ")}, {"B", strings.Join(c.OnlyB, "; ")}} {
		if only.names != "" {
			fmt.Fprintf(out, "Only in %s: %s\n", only.in, only.names)
		}
	}
	for _, s := range c.Remarks {
		fmt.Fprintln(out, s)
	}
	return out.Flush()
}

// isShownInTable selects the figures of a comparison at a terminal.
func isShownInTable(name string) bool {
	switch name {
	case "requests", "errors", "ttft_mean", "ttft_p50", "ttft_p99", "itl_mean", "itl_p99", "tpot_mean", "e2e_mean", "e2e_p99", "cached_share",
		"share_of_ideal", "imbalance", "requests_per_s", "output_tokens_per_s", "goodput_share", "lateness_p99", "duration_s":
		return true
	}
	return false
}

func writePair(w io.Writer, p *Pair) {
	table := [][]string{{"", "A", "B", "difference", "B / A", ""}}
	for _, c := range p.Figures {
		if isShownInTable(c.Name) {
			table = append(table, c.tableFields())
		}
	}
	widths := make([]int, len(table[0]))
	for _, fields := range table {
		for i, f := range fields {
			widths[i] = max(widths[i], utf8.RuneCountInString(f))
		}
	}
	for _, fields := range table {
		b := strings.Builder{}
		for i, f := range fields {
			pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(f))
			switch i {
			case 0:
				b.WriteString("  " + f + pad)
			case len(fields) - 1:
				b.WriteString("  " + f)
			default:
				b.WriteString("  " + pad + f)
			}
		}
		fmt.Fprintln(w, strings.TrimRight(b.String(), " "))
	}
}

// tableFields formats c as a line of a table.
func (c *Change) tableFields() []string {
	write, head := formatShort, c.figure.head
	switch c.figure.unit {
	case unitCount:
		write = func(v float64) string { return formatGrouped(v, 0) }
	case unitTime:
		write = formatMilliseconds
		if math.Max(c.A, c.B) >= 1000 {
			write = func(v float64) string { return formatShort(v/1000) + " s" }
		}
	case unitShare:
		write = formatPercent
	case unitPerSecond:
		head += "/s"
	case unitSeconds:
		write = func(v float64) string { return formatShort(v) + " s" }
	}
	change := write(c.Difference)
	if c.figure.unit == unitShare {
		change = formatGrouped(100*c.Difference, 1) + " points"
	}
	if c.Difference > 0 {
		change = "+" + change
	}
	times := ""
	if c.Ratio != nil {
		times = formatGrouped(*c.Ratio, 3)
	}
	return []string{head, write(c.A), write(c.B), change, times, c.Verdict}
}
