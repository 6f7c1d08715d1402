package trace

import (
	"bufio"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"penstock/core/kv"
	"penstock/internal/replay"
	"penstock/internal/strictjson"
)

// jsonRowDecoder reads a JSON object from each line. It owns and reuses the slices of a request.
type rows struct {
	lines         lines
	format        Format
	ignoreUnknown bool
	blockSize     int           // of rows without one
	unit          time.Duration // of timestamp
	define        func(key string) error
	check         func() error
	skipped       int

	json   *strictjson.Reader
	r      *replay.Request
	row    row // the fields of the line
	blocks []int64
	tokens []kv.Token
	media  []replay.Media

	turns recent[int]    // by session
	roots recent[string] // the first request of each conversation
}

// rowFields has what a line says in addition to the fields of a request.
type row struct {
	content   string // the field with the prompt's content; "" if none so far
	time      bool   // has a timestamp
	delay     bool
	output    bool
	hashes    bool
	blockSize int // 0 if missing
	adapter   bool
	turn      int // -1 if missing
	id        string
	parent    string // "" if missing
}

func newRows(from *bufio.Reader, format Format, opts *Options) *rows {
	return &rows{
		lines:         lines{from: from},
		format:        format,
		ignoreUnknown: opts.IgnoreUnknown,
		blockSize:     opts.BlockSize,
	}
}

func (d *rows) failed() int { return d.skipped }

func (d *rows) next(r *replay.Request) error {
	for {
		line, err := d.lines.next()
		if err != nil {
			return err
		}
		if err := d.read(line, r); err != nil {
			return fail(d.lines.number, jsonError("the row", err))
		}
		if d.row.output && r.Output == 0 {
			d.skipped++
			continue
		}
		return nil
	}
}

// readLine makes a request of one line.
func (d *rows) read(line []byte, r *replay.Request) (err error) {
	*r = replay.Request{Line: d.lines.number, At: unknown}
	d.r, d.row = r, row{turn: -1}
	d.blocks, d.tokens, d.media = d.blocks[:0], d.tokens[:0], d.media[:0]
	if d.json, err = strictjson.NewReader(line); err != nil {
		return err
	}
	if err := d.json.Object(d.define); err != nil {
		return err
	}
	if err := d.json.End(); err != nil {
		return err
	}
	if err := d.check(); err != nil {
		return err
	}
	if err := d.follow(); err != nil {
		return err
	}
	if len(d.media) > 0 {
		r.Media = d.media
	}
	return d.checkBlocks()
}

// skipUnknown handles a field which the format does not have.
func (d *rows) unknown() error {
	if d.ignoreUnknown {
		return d.json.Skip()
	}
	return fmt.Errorf("'%s' is no field of the format %s; correct it, or have unknown fields ignored", clip(d.json.Param()), d.format)
}

// readNumberText returns the text of the next number.
func (d *rows) number() (string, error) {
	if d.json.Kind() != strictjson.NumberKind {
		return "", d.json.Expected("a number")
	}
	raw, err := d.json.Raw()
	return string(raw), err
}

func (d *rows) time(dst *time.Duration, unit time.Duration) error {
	text, err := d.number()
	if err != nil {
		return err
	}
	if *dst, err = parseTime(text, unit); err != nil {
		return d.about(err)
	}
	return nil
}

func (d *rows) count(dst *int, limit int) error {
	text, err := d.number()
	if err != nil {
		return err
	}
	if *dst, err = parseCount(text, limit); err != nil {
		return d.about(err)
	}
	return nil
}

// fieldError adds the name of the field to err.
func (d *rows) about(err error) error { return fmt.Errorf("'%s' %w", d.json.Param(), err) }

// readName reads a string which names something.
func (d *rows) name(dst *string) error {
	if err := d.json.Text(dst); err != nil {
		return err
	}
	if n := len(*dst); n == 0 || n > maxName {
		return d.about(fmt.Errorf("must have between 1 and %d bytes, not %d", maxName, n))
	}
	return nil
}

// readID reads a name which may also be an integer.
func (d *rows) id(dst *string) error {
	switch d.json.Kind() {
	case strictjson.StringKind:
		return d.name(dst)
	case strictjson.NumberKind:
		n, err := d.json.Int()
		*dst = strconv.FormatInt(n, 10)
		return err
	}
	return d.json.Expected("a string or an integer")
}

// setPromptField records that the current field has the prompt's content.
func (d *rows) prompt() error {
	field := d.json.Param()
	if d.row.content != "" {
		return fmt.Errorf("'%s' and '%s' both say what the prompt is; keep one", d.row.content, field)
	}
	d.row.content = field
	return nil
}

// readBlockNames reads the names of the blocks.
func (d *rows) hashes() error {
	array, err := d.array("an array of integers")
	if err != nil {
		return err
	}
	wrong := -1
	if d.blocks, wrong = appendIntegers(d.blocks, array, math.MaxInt64); wrong >= 0 {
		return fmt.Errorf("'%s[%d]' must be an integer between 0 and %d", d.json.Param(), wrong, int64(math.MaxInt64))
	}
	d.row.hashes = true
	return nil
}

// readArray reads an array and returns its text.
func (d *rows) array(want string) ([]byte, error) {
	if d.json.Kind() != strictjson.ArrayKind {
		return nil, d.json.Expected(want)
	}
	return d.json.Raw()
}

// readObject reads an object and returns its text.
func (d *rows) object() ([]byte, error) {
	if d.json.Kind() != strictjson.ObjectKind {
		return nil, d.json.Expected("an object")
	}
	return d.json.Raw()
}

// checkBlocks checks hash_ids against the length of the prompt.
func (d *rows) checkBlocks() error {
	if !d.row.hashes {
		if d.row.blockSize > 0 {
			return errors.New("'block_size' needs 'hash_ids'")
		}
		return nil
	}
	size := d.row.blockSize
	if size == 0 {
		size = d.blockSize
	}
	want := (d.r.Input + size - 1) / size
	short := d.format == Bailian && len(d.blocks) == d.r.Input/size // a partial last block has no name
	if len(d.blocks) != want && !short {
		return fmt.Errorf("'hash_ids' has %d ids, and an 'input_length' of %d in blocks of %d tokens needs %d; if the blocks have another size, say so", len(d.blocks), d.r.Input, size, want)
	}
	if len(d.blocks) > 0 {
		d.r.Blocks, d.r.BlockTokens = d.blocks, size
	}
	return nil
}

// assignSession sets the session of a row which follows another, and checks that the turns of a session are
// in order.
func (d *rows) follow() error {
	r, row := d.r, &d.row
	if row.id != "" || row.parent != "" {
		if r.Session != "" {
			return errors.New("'session_id' and 'id' or 'parent' both say which requests this one follows; keep one")
		}
		r.Session = d.root()
	}
	if row.turn < 0 {
		return nil
	}
	if r.Session == "" {
		return errors.New("'turn' needs 'session_id' or 'parent'")
	}
	if d.format == Bailian {
		return nil // the branches of a chat have turns of their own
	}
	if last, ok := d.turns.get(r.Session); ok && row.turn <= last {
		return fmt.Errorf("'turn' is %d after turn %d of the same session; the rows of a session must be in order", row.turn, last)
	}
	d.turns.set(r.Session, row.turn)
	return nil
}

// conversationRoot returns the first request of the row's conversation. If that is not in the file, or too
// far back, it is the earliest known one.
func (d *rows) root() string {
	root := d.row.id
	if d.row.parent != "" {
		root = d.row.parent
		if known, ok := d.roots.get(root); ok {
			root = known
		}
	}
	if d.row.id != "" {
		d.roots.set(d.row.id, root)
	}
	return root
}

// quoteNames quotes field names for a message.
func quote(fields []string) string { return "'" + strings.Join(fields, "', '") + "'" }
