package trace

import (
	"bufio"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"penstock/internal/replay"
)

// The columns of the Azure traces.
const (
	azureTime = iota
	azureInput
	azureOutput
	azureImages
)

func azureColumns() []column {
	return []column{
		azureTime:   {"TIMESTAMP", required},
		azureInput:  {"ContextTokens", required},
		azureOutput: {"GeneratedTokens", required},
		azureImages: {"NumImages", optional},
	}
}

// azure reads the Azure traces.
type azure struct {
	table
	skipped int
	media   []replay.Media
}

func newAzure(from *bufio.Reader, opts *Options) *azure {
	return &azure{table: newTable(from, Azure, azureColumns(), opts)}
}

func (d *azure) failed() int { return d.skipped }

func (d *azure) next(r *replay.Request) error {
	for {
		if err := d.table.next(); err != nil {
			return err
		}
		*r = replay.Request{Line: d.lines.number}
		if err := d.row(r); err != nil {
			return err
		}
		if r.Input > 0 && r.Output > 0 {
			return nil
		}
		d.skipped++
	}
}

func (d *azure) row(r *replay.Request) (err error) {
	if r.At, err = parseMoment(d.value(azureTime)); err != nil {
		return d.wrong(azureTime, err)
	}
	if r.Input, err = d.count(azureInput, maxTokens); err != nil {
		return err
	}
	if r.Output, err = d.count(azureOutput, maxTokens); err != nil {
		return err
	}
	if d.at[azureImages] < 0 {
		return nil
	}
	images, err := d.count(azureImages, maxMedia)
	if err != nil || images == 0 {
		return err
	}
	d.media = d.media[:0]
	for i := range images {
		d.media = append(d.media, replay.Media{Kind: "image", ID: onlyHere(r.Line, i)})
	}
	r.Media = d.media
	return nil
}

// parseMoment reads a date and a time, such as 2023-11-16 18:15:46.6805900 or
// 2024-05-10T00:00:00.009930+00:00, as the time since 1970. Without an offset it is
// UTC.
func parseMoment(text string) (time.Duration, error) {
	const layout = "2006-01-02 15:04:05"
	bad := func() (time.Duration, error) {
		return 0, fmt.Errorf("must be a time such as 2024-05-10 00:00:00.009930+00:00, not %s", found(text))
	}
	if len(text) < len(layout) {
		return bad()
	}
	clock, rest := text[:len(layout)], text[len(layout):]
	var at [6]int // year, month, day, hour, minute, second
	for i, from := range []int{0, 5, 8, 11, 14, 17} {
		to := from + 2
		if i == 0 {
			to = 4
		}
		n, err := strconv.ParseUint(clock[from:to], 10, 16)
		if err != nil {
			return bad()
		}
		at[i] = int(n)
	}
	if clock[4] != '-' || clock[7] != '-' || clock[10] != ' ' && clock[10] != 'T' || clock[13] != ':' || clock[16] != ':' {
		return bad()
	}
	t := time.Date(at[0], time.Month(at[1]), at[2], at[3], at[4], at[5], 0, time.UTC)
	if t.Month() != time.Month(at[1]) || t.Day() != at[2] || at[3] > 23 || at[4] > 59 || at[5] > 59 {
		return 0, errors.New("is a day or a time that no calendar has")
	}
	if at[0] < 1971 || at[0] > 2069 {
		return 0, errors.New("must be between the years 1971 and 2069")
	}
	fraction, rest := cutFraction(rest)
	offset, ok := parseOffset(rest)
	if !ok || fraction < 0 {
		return bad()
	}
	return time.Duration(t.Unix())*time.Second + fraction - offset, nil
}

// cutFraction reads the part of a second that rest may begin with, to the
// nanosecond; it is negative if there is a point and no digit.
func cutFraction(rest string) (fraction time.Duration, _ string) {
	if rest == "" || rest[0] != '.' {
		return 0, rest
	}
	i, unit := 1, time.Second
	for ; i < len(rest) && isDigit(rest[i]); i++ {
		unit /= 10
		fraction += time.Duration(rest[i]-'0') * unit
	}
	if i == 1 {
		return -1, rest
	}
	return fraction, rest[i:]
}

// parseOffset reads how far a clock is ahead of UTC: nothing, Z, +02:00 or +0200.
func parseOffset(text string) (time.Duration, bool) {
	if text == "" || text == "Z" {
		return 0, true
	}
	digits := strings.Replace(text[1:], ":", "", 1)
	n, err := strconv.ParseUint(digits, 10, 16)
	if err != nil || len(digits) != 4 || n/100 > 14 || n%100 > 59 {
		return 0, false
	}
	offset := time.Duration(n/100)*time.Hour + time.Duration(n%100)*time.Minute
	switch text[0] {
	case '+':
		return offset, true
	case '-':
		return -offset, true
	}
	return 0, false
}
