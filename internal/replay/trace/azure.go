package trace

import (
	"bufio"
	"errors"
	"fmt"
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

func azureColumns() []tableColumn {
	return []tableColumn{
		azureTime:   {"TIMESTAMP", requiredColumn},
		azureInput:  {"ContextTokens", requiredColumn},
		azureOutput: {"GeneratedTokens", requiredColumn},
		azureImages: {"NumImages", optionalColumn},
	}
}

// azureDecoder reads the Azure traces.
type azureDecoder struct {
	csvTable
	moments timestampParser
	media   []replay.Media
}

func newAzureDecoder(from *bufio.Reader, opts *Options) *azureDecoder {
	d := &azureDecoder{csvTable: newCSVTable(from, Azure, azureColumns(), opts)}
	d.parseRow = d.readRow
	return d
}

func (d *azureDecoder) readRow(r *replay.Request) (err error) {
	if r.At, err = d.moments.parseTimestamp(d.columnValue(azureTime)); err != nil {
		return d.columnError(azureTime, err)
	}
	if r.Input, err = d.readCount(azureInput, maxTokens); err != nil {
		return err
	}
	if r.Output, err = d.readCount(azureOutput, maxTokens); err != nil {
		return err
	}
	if d.positions[azureImages] < 0 {
		return nil
	}
	images, err := d.readCount(azureImages, maxMedia)
	if err != nil || images == 0 {
		return err
	}
	d.media = d.media[:0]
	for i := range images {
		d.media = append(d.media, replay.Media{Kind: "image", ID: uniqueMediaID(r.Line, i)})
	}
	r.Media = d.media
	return nil
}

// timestampParser reads dates and times. It caches the last day, since most rows repeat it.
type timestampParser struct {
	date string
	day  time.Duration // start of that day, since 1970
}

// parseTimestamp reads a date and a time, such as 2023-11-16 18:15:46.6805900 or
// 2024-05-10T00:00:00.009930+00:00, as the time since 1970. Without an offset it is UTC.
func (m *timestampParser) parseTimestamp(text string) (time.Duration, error) {
	const (
		dateLen  = len("2006-01-02")
		clockLen = len("15:04:05")
	)
	bad := func() (time.Duration, error) {
		return 0, fmt.Errorf("must be a time such as 2024-05-10 00:00:00.009930+00:00, not %s", describeValue(text))
	}
	if len(text) < dateLen+1+clockLen || text[dateLen] != ' ' && text[dateLen] != 'T' {
		return bad()
	}
	date, clock, rest := text[:dateLen], text[dateLen+1:][:clockLen], text[dateLen+1+clockLen:]
	hour, minute, second := twoDigits(clock), twoDigits(clock[3:]), twoDigits(clock[6:])
	fraction, rest := cutFraction(rest)
	offset, ok := parseOffset(rest)
	if hour < 0 || minute < 0 || second < 0 || clock[2] != ':' || clock[5] != ':' || fraction < 0 || !ok {
		return bad()
	}
	if date != m.date {
		year, month, day := 100*twoDigits(date)+twoDigits(date[2:]), twoDigits(date[5:]), twoDigits(date[8:])
		if twoDigits(date) < 0 || twoDigits(date[2:]) < 0 || month < 0 || day < 0 || date[4] != '-' || date[7] != '-' {
			return bad()
		}
		if year < 1971 || year > 2069 {
			return 0, errors.New("must be between the years 1971 and 2069")
		}
		t := time.Date(year, time.Month(month), day, 0, 0, 0, 0, time.UTC)
		if t.Month() != time.Month(month) || t.Day() != day {
			return 0, errors.New("is a day that no calendar has")
		}
		m.date, m.day = strings.Clone(date), time.Duration(t.Unix())*time.Second
	}
	if hour > 23 || minute > 59 || second > 59 {
		return 0, errors.New("is a time that no clock has")
	}
	inDay := time.Duration(hour*3600+minute*60+second) * time.Second
	return m.day + inDay + fraction - offset, nil
}

// twoDigits reads the first two digits of s; it is negative if they are not digits.
func twoDigits(s string) int {
	if !isDigit(s[0]) || !isDigit(s[1]) {
		return -1
	}
	return 10*int(s[0]-'0') + int(s[1]-'0')
}

// cutFraction reads an optional fraction of a second, to the nanosecond; it is negative if there is a point
// and no digit.
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

// parseOffset reads the offset from UTC: nothing, Z, +02:00 or +0200.
func parseOffset(text string) (time.Duration, bool) {
	if text == "" || text == "Z" {
		return 0, true
	}
	digits := strings.Replace(text[1:], ":", "", 1)
	if len(digits) != 4 || twoDigits(digits) < 0 || twoDigits(digits[2:]) < 0 {
		return 0, false
	}
	hours, minutes := twoDigits(digits), twoDigits(digits[2:])
	if hours > 14 || minutes > 59 { // the largest offset in use
		return 0, false
	}
	offset := time.Duration(60*hours+minutes) * time.Minute
	switch text[0] {
	case '+':
		return offset, true
	case '-':
		return -offset, true
	}
	return 0, false
}
