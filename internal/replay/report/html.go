package report

import (
	"bytes"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"fmt"
	"html/template"
	"io"
	"slices"
	"strings"

	"penstock/internal/replay"
)

//go:embed page/page.html
var pageText string

//go:embed page/page.css
var pageStyle string

//go:embed page/page.js
var pageScript string

// htmlPage is the data of the template.
type htmlPage struct {
	Title, About, Version string
	Notes, Headlines      []string
	Summary               captionedGrid
	Remarks               []string
	Details               []captionedGrid
	Settings              []replay.Setting
	Repeat                string
	Style                 template.CSS
	Script                template.JS
	StyleHash, ScriptHash string // as the page's content security policy names them
	Data                  template.JS
}

// captionedGrid is a table with its caption.
type captionedGrid struct {
	*figureGrid
	Label string
}

// WriteHTML writes r as one page which loads nothing: tables, and plots which a script draws from data in the
// page. Values of r enter the page as text only, and the page's own content security policy allows no script
// and no style except the two whose digests it names.
func WriteHTML(w io.Writer, r *replay.Result) error {
	data, err := newPageData(r).encodeJSON()
	if err != nil {
		return fmt.Errorf("report html: %w", err)
	}
	t, err := template.New("page").Parse(pageText)
	if err != nil {
		return fmt.Errorf("report html: %w", err)
	}
	p := htmlPage{
		Title: "Penstock " + sanitizeText(r.Command, nameLimit), About: describeRun(r), Version: sanitizeText(r.Version, nameLimit),
		Headlines: keepUnitsTogether(pageHeadlines(r)), Remarks: keepUnitsTogether(tableRemarks(r)), Repeat: commandLine(r),
		Style: template.CSS(pageStyle), Script: template.JS(pageScript), Data: template.JS(data),
		StyleHash: cspDigest(pageStyle), ScriptHash: cspDigest(pageScript),
	}
	for _, n := range r.Notes {
		p.Notes = append(p.Notes, sanitizeText(n, noteLimit))
	}
	for _, s := range r.Settings {
		p.Settings = append(p.Settings, replay.Setting{Name: sanitizeText(s.Name, nameLimit), Value: sanitizeText(s.Value, settingLimit)})
	}
	rows := withPlainNames(r.Rows)
	p.Summary = captionedGrid{newFigureGrid(rows, summaryFigures(rows)), "Each run in a line"}
	p.Details = distributionTables(rows)

	var out bytes.Buffer // an incomplete page is not written
	if err := t.Execute(&out, p); err != nil {
		return fmt.Errorf("report html: %w", err)
	}
	_, err = w.Write(out.Bytes())
	return err
}

// keepUnitsTogether keeps numbers and their units on one line.
func keepUnitsTogether(sentences []string) []string {
	keep := strings.NewReplacer(" %", "\u00a0%", " ms", "\u00a0ms", " s,", "\u00a0s,", " s;", "\u00a0s;")
	for i, s := range sentences {
		sentences[i] = keep.Replace(s)
	}
	return sentences
}

// cspDigest returns the digest of a text for a content security policy.
func cspDigest(text string) string {
	sum := sha256.Sum256([]byte(text))
	return "sha256-" + base64.StdEncoding.EncodeToString(sum[:])
}

// withPlainNames returns rows with sanitized names.
func withPlainNames(rows []replay.Row) []replay.Row {
	shown := make([]replay.Row, len(rows))
	for i, r := range rows {
		r.Policy = sanitizeText(r.Policy, nameLimit)
		shown[i] = r
	}
	return shown
}

// distributionTables returns a table of all percentiles for each measured distribution.
func distributionTables(rows []replay.Row) []captionedGrid {
	var tables []captionedGrid
	for _, d := range rowDistributions() {
		var names []string
		for _, p := range distributionPoints() {
			names = append(names, d.name+"_"+p.name)
		}
		g := newFigureGrid(rows, pickFigures(names...))
		if differ := clusterSizeFigures(rows); len(g.Columns) > 0 && len(differ) > 0 {
			g = newFigureGrid(rows, append(differ, pickFigures(names...)...))
		}
		if len(g.Columns) > 0 {
			tables = append(tables, captionedGrid{g, d.head + ": " + d.what})
		}
	}
	return tables
}

// describeRun says in one line what ran.
func describeRun(r *replay.Result) string {
	requests := 0
	for i := range r.Rows {
		requests += r.Rows[i].Requests
	}
	said := formatPlural(len(r.Rows), "run", "runs") + " · " + formatPlural(requests, "request", "requests")
	for _, s := range r.Settings {
		switch strings.TrimLeft(s.Name, "-") {
		case "trace":
			said += " · " + sanitizeText(s.Value[strings.LastIndexAny(s.Value, `/\`)+1:], nameLimit)
		case "url", "model":
			said += " · " + sanitizeText(s.Name, nameLimit) + " " + sanitizeText(s.Value, nameLimit)
		}
	}
	return said
}

// pageHeadlines say for each cluster size which policy responds first; for a single run its main result.
func pageHeadlines(r *replay.Result) []string {
	if len(r.Rows) == 1 {
		return describeSingle(&r.Rows[0])
	}
	var said []string
	differ := clusterSizeFigures(r.Rows)
	for i := range r.Rows {
		if len(said) == maxHeadlines || slices.ContainsFunc(r.Rows[:i], func(o replay.Row) bool { return isSameCluster(&o, &r.Rows[i]) }) {
			continue
		}
		first, second := fastestRows(r.Rows, &r.Rows[i])
		if second == nil || first.TTFT.Mean <= 0 {
			continue
		}
		with := ""
		if size := sizeName(first, differ); size != "" {
			with = "With " + size + ", "
		}
		said = append(said, fmt.Sprintf("%s%s has the shortest mean TTFT, %s; next is %s with %s, %s times as long.", with,
			sanitizeText(first.Policy, nameLimit), formatMilliseconds(first.TTFT.Mean), sanitizeText(second.Policy, nameLimit), formatMilliseconds(second.TTFT.Mean),
			formatGrouped(second.TTFT.Mean/first.TTFT.Mean, 2)))
	}
	return said
}

// fastestRows returns the two rows of this cluster size with the shortest mean TTFT; rows of a late client
// are left out.
func fastestRows(rows []replay.Row, size *replay.Row) (first, second *replay.Row) {
	for i := range rows {
		row := &rows[i]
		switch {
		case !isSameCluster(row, size) || row.Late || row.TTFT.Count == 0:
		case first == nil || row.TTFT.Mean < first.TTFT.Mean:
			first, second = row, first
		case second == nil || row.TTFT.Mean < second.TTFT.Mean:
			second = row
		}
	}
	return first, second
}

const maxHeadlines = 4

func describeSingle(r *replay.Row) []string {
	if r.TTFT.Count == 0 {
		return nil
	}
	s := fmt.Sprintf("%s: the first token came after %s on average, after %s in 99 of 100 answers", rowNames([]replay.Row{*r})[0], formatMilliseconds(r.TTFT.Mean), formatMilliseconds(r.TTFT.P99))
	if r.InputTokens > 0 {
		s += "; " + formatPercent(r.CachedShare) + " of the prompt tokens came from a cache"
	}
	return []string{s + "."}
}

// commandLine returns the command line with these settings.
func commandLine(r *replay.Result) string {
	b := strings.Builder{}
	b.WriteString("penstock " + shellQuote(sanitizeText(r.Command, nameLimit)))
	for _, s := range r.Settings {
		b.WriteString(" \\\n  " + shellQuote("--"+strings.TrimLeft(sanitizeText(s.Name, nameLimit), "-")+"="+sanitizeText(s.Value, settingLimit)))
	}
	return b.String()
}

// shellQuote quotes s as one word for a shell.
func shellQuote(s string) string {
	const safe = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=+.,:/@%"
	if s != "" && strings.Trim(s, safe) == "" {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
