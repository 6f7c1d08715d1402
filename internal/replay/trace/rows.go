package trace

import (
	"bufio"
	"cmp"
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
type jsonRowDecoder struct {
	lines         lineReader
	format        Format
	ignoreUnknown bool
	blockSize     int           // of rows without one
	unit          time.Duration // of timestamp
	readField     func(key string) error
	checkRow      func() error
	skipped       int

	json   *strictjson.Reader
	r      *replay.Request
	row    rowFields // the fields of the line
	blocks []int64
	tokens []kv.Token
	media  []replay.Media

	turns recentMap[int]    // by session
	roots recentMap[string] // the first request of each conversation
}

// rowFields has what a line says in addition to the fields of a request.
type rowFields struct {
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

func newJSONRowDecoder(from *bufio.Reader, format Format, opts *Options) *jsonRowDecoder {
	return &jsonRowDecoder{
		lines:         lineReader{from: from},
		format:        format,
		ignoreUnknown: opts.IgnoreUnknown,
		blockSize:     opts.BlockSize,
	}
}

func (d *jsonRowDecoder) failedRows() int { return d.skipped }

func (d *jsonRowDecoder) nextRow(r *replay.Request) error {
	for {
		line, err := d.lines.nextLine()
		if err != nil {
			return err
		}
		if err := d.readLine(line, r); err != nil {
			return errorAtLine(d.lines.number, jsonError("the row", err))
		}
		if d.row.output && r.Output == 0 {
			d.skipped++
			continue
		}
		return nil
	}
}

// readLine makes a request of one line.
func (d *jsonRowDecoder) readLine(line []byte, r *replay.Request) (err error) {
	*r = replay.Request{Line: d.lines.number, At: unknownTime}
	d.r, d.row = r, rowFields{turn: -1}
	d.blocks, d.tokens, d.media = d.blocks[:0], d.tokens[:0], d.media[:0]
	if d.json, err = strictjson.NewReader(line); err != nil {
		return err
	}
	if err := d.json.ReadObject(d.readField); err != nil {
		return err
	}
	if err := d.json.CheckEnd(); err != nil {
		return err
	}
	if err := d.checkRow(); err != nil {
		return err
	}
	if err := d.assignSession(); err != nil {
		return err
	}
	if len(d.media) > 0 {
		r.Media = d.media
	}
	return d.checkBlocks()
}

// skipUnknown handles a field which the format does not have.
func (d *jsonRowDecoder) skipUnknown() error {
	if d.ignoreUnknown {
		return d.json.SkipValue()
	}
	return fmt.Errorf("'%s' is no field of the format %s; correct it, or have unknown fields ignored", clipName(d.json.ParamPath()), d.format)
}

// readNumberText returns the text of the next number.
func (d *jsonRowDecoder) readNumberText() (string, error) {
	if d.json.Kind() != strictjson.NumberKind {
		return "", d.json.WrongTypeError("a number")
	}
	raw, err := d.json.ReadRaw()
	return string(raw), err
}

func (d *jsonRowDecoder) readTime(dst *time.Duration, unit time.Duration) error {
	text, err := d.readNumberText()
	if err != nil {
		return err
	}
	if *dst, err = parseTime(text, unit); err != nil {
		return d.fieldError(err)
	}
	return nil
}

func (d *jsonRowDecoder) readCount(dst *int, limit int) error {
	text, err := d.readNumberText()
	if err != nil {
		return err
	}
	if *dst, err = parseCount(text, limit); err != nil {
		return d.fieldError(err)
	}
	return nil
}

// fieldError adds the name of the field to err.
func (d *jsonRowDecoder) fieldError(err error) error {
	return fmt.Errorf("'%s' %w", d.json.ParamPath(), err)
}

// readName reads a string which names something.
func (d *jsonRowDecoder) readName(dst *string) error {
	if err := d.json.ReadStringInto(dst); err != nil {
		return err
	}
	if n := len(*dst); n == 0 || n > maxName {
		return d.fieldError(fmt.Errorf("must have between 1 and %d bytes, not %d", maxName, n))
	}
	return nil
}

// readID reads a name which may also be an integer.
func (d *jsonRowDecoder) readID(dst *string) error {
	switch d.json.Kind() {
	case strictjson.StringKind:
		return d.readName(dst)
	case strictjson.NumberKind:
		n, err := d.json.ReadInt()
		*dst = strconv.FormatInt(n, 10)
		return err
	}
	return d.json.WrongTypeError("a string or an integer")
}

// setPromptField records that the current field has the prompt's content.
func (d *jsonRowDecoder) setPromptField() error {
	field := d.json.ParamPath()
	if d.row.content != "" {
		return fmt.Errorf("'%s' and '%s' both say what the prompt is; keep one", d.row.content, field)
	}
	d.row.content = field
	return nil
}

// readBlockNames reads the names of the blocks.
func (d *jsonRowDecoder) readBlockNames() error {
	array, err := d.readArray("an array of integers")
	if err != nil {
		return err
	}
	wrong := -1
	if d.blocks, wrong = appendIntegers(d.blocks, array, math.MaxInt64); wrong >= 0 {
		return fmt.Errorf("'%s[%d]' must be an integer between 0 and %d", d.json.ParamPath(), wrong, int64(math.MaxInt64))
	}
	d.row.hashes = true
	return nil
}

// readArray reads an array and returns its text.
func (d *jsonRowDecoder) readArray(want string) ([]byte, error) {
	if d.json.Kind() != strictjson.ArrayKind {
		return nil, d.json.WrongTypeError(want)
	}
	return d.json.ReadRaw()
}

// readObject reads an object and returns its text.
func (d *jsonRowDecoder) readObject() ([]byte, error) {
	if d.json.Kind() != strictjson.ObjectKind {
		return nil, d.json.WrongTypeError("an object")
	}
	return d.json.ReadRaw()
}

// checkBlocks checks hash_ids against the length of the prompt.
func (d *jsonRowDecoder) checkBlocks() error {
	if !d.row.hashes {
		if d.row.blockSize > 0 {
			return errors.New("'block_size' needs 'hash_ids'")
		}
		return nil
	}
	size := d.row.blockSize
	size = cmp.Or(size, d.blockSize)
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
func (d *jsonRowDecoder) assignSession() error {
	r, row := d.r, &d.row
	if row.id != "" || row.parent != "" {
		if r.Session != "" {
			return errors.New("'session_id' and 'id' or 'parent' both say which requests this one follows; keep one")
		}
		r.Session = d.conversationRoot()
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
func (d *jsonRowDecoder) conversationRoot() string {
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
func quoteNames(fields []string) string { return "'" + strings.Join(fields, "', '") + "'" }
