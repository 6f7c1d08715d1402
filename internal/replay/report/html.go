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
type page struct {
	Title, About, Version string
	Notes, Headlines      []string
	Summary               labelled
	Remarks               []string
	Details               []labelled
	Settings              []replay.Setting
	Repeat                string
	Style                 template.CSS
	Script                template.JS
	StyleHash, ScriptHash string // as the page's content security policy names them
	Data                  template.JS
}

// captionedGrid is a table with its caption.
type labelled struct {
	*grid
	Label string
}

// WriteHTML writes r as one page which loads nothing: tables, and plots which a script draws from data in the
// page. Values of r enter the page as text only, and the page's own content security policy allows no script
// and no style except the two whose digests it names.
func HTML(w io.Writer, r *replay.Result) error {
	data, err := viewOf(r).json()
	if err != nil {
		return fmt.Errorf("report html: %w", err)
	}
	t, err := template.New("page").Parse(pageText)
	if err != nil {
		return fmt.Errorf("report html: %w", err)
	}
	p := page{
		Title: title(r), About: about(r), Version: plain(r.Version, nameLimit),
		Headlines: unbroken(headlines(r)), Remarks: unbroken(remarks(r)), Repeat: repeat(r),
		Style: template.CSS(pageStyle), Script: template.JS(pageScript), Data: template.JS(data),
		StyleHash: digest(pageStyle), ScriptHash: digest(pageScript),
	}
	for _, n := range r.Notes {
		p.Notes = append(p.Notes, plain(n, noteLimit))
	}
	for _, s := range r.Settings {
		p.Settings = append(p.Settings, replay.Setting{Name: plain(s.Name, nameLimit), Value: plain(s.Value, settingLimit)})
	}
	rows := named(r.Rows)
	p.Summary = labelled{newGrid(rows, summary(rows)), "Each run in a line"}
	p.Details = details(rows)

	var out bytes.Buffer // an incomplete page is not written
	if err := t.Execute(&out, p); err != nil {
		return fmt.Errorf("report html: %w", err)
	}
	_, err = w.Write(out.Bytes())
	return err
}

// keepUnitsTogether keeps numbers and their units on one line.
func unbroken(sentences []string) []string {
	keep := strings.NewReplacer(" %", "\u00a0%", " ms", "\u00a0ms", " s,", "\u00a0s,", " s;", "\u00a0s;")
	for i, s := range sentences {
		sentences[i] = keep.Replace(s)
	}
	return sentences
}

// cspDigest returns the digest of a text for a content security policy.
func digest(text string) string {
	sum := sha256.Sum256([]byte(text))
	return "sha256-" + base64.StdEncoding.EncodeToString(sum[:])
}

// withPlainNames returns rows with sanitized names.
func named(rows []replay.Row) []replay.Row {
	shown := make([]replay.Row, len(rows))
	for i, r := range rows {
		r.Policy = plain(r.Policy, nameLimit)
		shown[i] = r
	}
	return shown
}

// distributionTables returns a table of all percentiles for each measured distribution.
func details(rows []replay.Row) []labelled {
	var tables []labelled
	for _, d := range distributions() {
		var names []string
		for _, p := range points() {
			names = append(names, d.name+"_"+p.name)
		}
		g := newGrid(rows, pick(names...))
		if differ := sizes(rows); len(g.Columns) > 0 && len(differ) > 0 {
			g = newGrid(rows, append(differ, pick(names...)...))
		}
		if len(g.Columns) > 0 {
			tables = append(tables, labelled{g, d.head + ": " + d.what})
		}
	}
	return tables
}

func title(r *replay.Result) string { return "Penstock " + plain(r.Command, nameLimit) }

// describeRun says in one line what ran.
func about(r *replay.Result) string {
	requests := 0
	for i := range r.Rows {
		requests += r.Rows[i].Requests
	}
	said := plural(len(r.Rows), "run", "runs") + " · " + plural(requests, "request", "requests")
	for _, s := range r.Settings {
		switch strings.TrimLeft(s.Name, "-") {
		case "trace":
			said += " · " + plain(s.Value[strings.LastIndexAny(s.Value, `/\`)+1:], nameLimit)
		case "url", "model":
			said += " · " + plain(s.Name, nameLimit) + " " + plain(s.Value, nameLimit)
		}
	}
	return said
}

// pageHeadlines say for each cluster size which policy responds first; for a single run its main result.
func headlines(r *replay.Result) []string {
	if len(r.Rows) == 1 {
		return single(&r.Rows[0])
	}
	var said []string
	differ := sizes(r.Rows)
	for i := range r.Rows {
		if len(said) == mostHeadlines || slices.ContainsFunc(r.Rows[:i], func(o replay.Row) bool { return alike(&o, &r.Rows[i]) }) {
			continue
		}
		first, second := fastest(r.Rows, &r.Rows[i])
		if second == nil || first.TTFT.Mean <= 0 {
			continue
		}
		with := ""
		if size := sizeName(first, differ); size != "" {
			with = "With " + size + ", "
		}
		said = append(said, fmt.Sprintf("%s%s has the shortest mean TTFT, %s; next is %s with %s, %s times as long.", with,
			plain(first.Policy, nameLimit), milliseconds(first.TTFT.Mean), plain(second.Policy, nameLimit), milliseconds(second.TTFT.Mean),
			grouped(second.TTFT.Mean/first.TTFT.Mean, 2)))
	}
	return said
}

// fastestRows returns the two rows of this cluster size with the shortest mean TTFT; rows of a late client
// are left out.
func fastest(rows []replay.Row, size *replay.Row) (first, second *replay.Row) {
	for i := range rows {
		row := &rows[i]
		switch {
		case !alike(row, size) || row.Late || row.TTFT.Count == 0:
		case first == nil || row.TTFT.Mean < first.TTFT.Mean:
			first, second = row, first
		case second == nil || row.TTFT.Mean < second.TTFT.Mean:
			second = row
		}
	}
	return first, second
}

const mostHeadlines = 4

func single(r *replay.Row) []string {
	if r.TTFT.Count == 0 {
		return nil
	}
	s := fmt.Sprintf("%s: the first token came after %s on average, after %s in 99 of 100 answers", rowNames([]replay.Row{*r})[0], milliseconds(r.TTFT.Mean), milliseconds(r.TTFT.P99))
	if r.InputTokens > 0 {
		s += "; " + percent(r.CachedShare) + " of the prompt tokens came from a cache"
	}
	return []string{s + "."}
}

// commandLine returns the command line with these settings.
func repeat(r *replay.Result) string {
	b := strings.Builder{}
	b.WriteString("penstock " + quote(plain(r.Command, nameLimit)))
	for _, s := range r.Settings {
		b.WriteString(" \\\n  " + quote("--"+strings.TrimLeft(plain(s.Name, nameLimit), "-")+"="+plain(s.Value, settingLimit)))
	}
	return b.String()
}

// shellQuote quotes s as one word for a shell.
func quote(s string) string {
	const safe = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=+.,:/@%"
	if s != "" && strings.Trim(s, safe) == "" {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
