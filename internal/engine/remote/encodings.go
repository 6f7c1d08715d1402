package remote

import (
	"bytes"
	"context"
	"sync"

	"penstock/core/embcache"
	"penstock/core/fault"
	"penstock/core/media"
	"penstock/internal/engine"
	"penstock/internal/strictjson"
)

// MediaEncoders has the media of requests encoded by other workers, whose engines hand them to this one. It is called
// from several goroutines.
type MediaEncoders interface {
	// Run follows the workers until ctx ends.
	Run(ctx context.Context) error
	// HasEncoders reports whether there is a worker to ask. It does not wait.
	HasEncoders() bool
	// HandOffObject returns the handoff of an object, see [engine.Encoded], which is not changed. It may be one which
	// was given before. An engine encodes itself what fails.
	HandOffObject(ctx context.Context, job *engine.EncodeJob) ([]byte, error)
	// ForgetHandoff says that the engine did not find what a handoff names.
	ForgetHandoff(job *engine.EncodeJob)
}

// TakesEncodings reports whether the engine takes media which other engines encoded.
func (b *Base) TakesEncodings() bool { return b.cfg.TakesEncodings }

// UseEncoders has the media of passthrough requests encoded by others, if the engine takes that. It is called before
// Run, which runs e.
func (b *Base) UseEncoders(e MediaEncoders) {
	if b.cfg.TakesEncodings {
		b.encoders = e
	}
}

func (b *Base) runEncoders(ctx context.Context) {
	if b.encoders != nil {
		_ = b.encoders.Run(ctx) // it says nothing but that ctx has ended
	}
}

// maxEncodeJobs bounds the objects of one request which are being encoded at a time.
const maxEncodeJobs = 8

// encodeJobs returns what other workers are asked to encode for a request: each distinct object whose key the engine is
// sent. It is empty if none can be asked, if the engine has the whole of what shows media in its KV cache, and if the
// request says how its media are to be processed.
func (b *Base) encodeJobs(req *engine.PassthroughRequest, sent *editedBody, part *SubRequest, salt string) (jobs []*engine.EncodeJob) {
	if b.encoders == nil || !sent.namesMedia || sent.processes || !b.encoders.HasEncoders() {
		return nil
	}
	if n := len(part.Request.Media); n == len(req.Objects) && part.expectedCached >= part.Request.Media[n-1].End {
		return nil
	}
	seen := map[media.Key]bool{}
	for i := range req.Objects {
		o := req.Objects[i]
		o.Source = partSource(req.Body[sent.parts[i].start-1 : sent.parts[i].end])
		if o.Source == "" || seen[o.Key] {
			continue
		}
		seen[o.Key] = true
		jobs = append(jobs, &engine.EncodeJob{ID: req.ID, Object: &o, HandOff: true, Key: embcache.RowKey{
			Salt: salt, Kind: uint8(o.Kind), Digest: o.Key.Digest, Encoder: b.cfg.Card.Encoder,
		}})
	}
	return jobs
}

// partSource returns the URL of the object which a part of a message shows; "" if it has none that is known.
func partSource(part []byte) (source string) {
	c := strictjson.NewCursor(part)
	for c.Open('{'); c.More('}'); {
		switch key := string(c.Key()); {
		case isURLPart(key) && c.NextIs('{'):
			for c.Open('{'); c.More('}'); {
				if string(c.Key()) == "url" && c.NextIs('"') {
					source = c.ReadString()
				} else {
					c.Skip()
				}
			}
		case isURLPart(key) && c.NextIs('"'):
			source = c.ReadString()
		case key == "input_audio" && c.NextIs('{'):
			source = readInlineAudio(&c)
		default:
			c.Skip()
		}
	}
	if c.End() != nil {
		return ""
	}
	return source
}

// isURLPart reports whether a member of a part has the URL of an object.
func isURLPart(key string) bool {
	for _, kind := range [...]media.Kind{media.Image, media.Video, media.Audio} {
		if key == kind.String()+"_url" {
			return true
		}
	}
	return false
}

// readInlineAudio reads {"data":"…","format":"wav"} as a data: URI.
func readInlineAudio(c *strictjson.Cursor) string {
	data, format := "", ""
	for c.Open('{'); c.More('}'); {
		switch key := string(c.Key()); {
		case key == "data" && c.NextIs('"'):
			data = c.ReadString()
		case key == "format" && c.NextIs('"'):
			format = c.ReadString()
		default:
			c.Skip()
		}
	}
	if data == "" || format == "" {
		return ""
	}
	return "data:audio/" + format + ";base64," + data
}

// forwardWithEncodings has the objects of jobs encoded and serves the request with what came of it. If the engine then
// fails on it before its first token, the objects are asked for once more, and at last the engine encodes all itself.
func (p *passthroughCall) forwardWithEncodings(ctx context.Context, w *editOptions, jobs []*engine.EncodeJob, plain *BodyBuffer) error {
	for range 2 {
		given := p.base.handOffMedia(ctx, jobs)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if given == nil {
			break
		}
		w.encodings = given
		err := p.forwardEdited(ctx, w)
		if err == nil || p.accepted || fault.CodeOf(err) != fault.EngineError {
			return err
		}
		for _, job := range jobs {
			p.base.encoders.ForgetHandoff(job)
		}
	}
	p.awaitsTokens = false
	return p.forwardCall(ctx, plain)
}

// forwardEdited forwards the client's request with changes.
func (p *passthroughCall) forwardEdited(ctx context.Context, w *editOptions) error {
	body := NewBody()
	defer body.Release()
	sent, err := editRequestBody(body.B, p.req.Body, w)
	if err != nil {
		return fault.New(fault.Invalid, "%v", err)
	}
	body.B, p.awaitsTokens = sent.body, true
	return p.forwardCall(ctx, body)
}

// handOffMedia returns the entries of all handoffs which come of jobs, as one JSON object; nil if there are none.
func (b *Base) handOffMedia(ctx context.Context, jobs []*engine.EncodeJob) []byte {
	handoffs := make([][]byte, len(jobs))
	next := make(chan int, len(jobs))
	for i := range jobs {
		next <- i
	}
	close(next)
	var asking sync.WaitGroup
	for range min(len(jobs), maxEncodeJobs) {
		asking.Go(func() {
			for i := range next {
				// What fails was logged where it did; the engine encodes the object.
				if h, err := b.encoders.HandOffObject(ctx, jobs[i]); err == nil && isJSONObject(h) {
					handoffs[i] = bytes.TrimSpace(h)
				}
			}
		})
	}
	asking.Wait()
	var all []byte
	for _, h := range handoffs {
		entries := bytes.TrimSpace(bytes.TrimSuffix(bytes.TrimPrefix(h, []byte{'{'}), []byte{'}'}))
		if len(entries) == 0 {
			continue
		}
		if all == nil {
			all = append(all, '{')
		} else {
			all = append(all, ',')
		}
		all = append(all, entries...)
	}
	if all == nil {
		return nil
	}
	return append(all, '}')
}

// isJSONObject reports whether b is one JSON object.
func isJSONObject(b []byte) bool {
	c := strictjson.NewCursor(b)
	if !c.NextIs('{') {
		return false
	}
	c.Skip()
	return c.End() == nil
}
