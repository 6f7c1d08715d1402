package fleet

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"image"
	"image/jpeg"
	"image/png"
	"io"
	"maps"
	"strings"
)

// Request is a request of a mix. Its answer is a function of the request only, on any worker and under any
// disturbance.
type Request struct {
	Name string
	Path string
	Body map[string]any
}

// IsGuided reports whether the answer has a schema, which not every engine supports.
func (r Request) IsGuided() bool { return r.Body["response_format"] != nil }

// KnownRequest is a request with its undisturbed answer.
type KnownRequest struct {
	Request
	Want Answer
}

// requestKinds is the number of request kinds which a change of worker could disturb, each in another way.
const requestKinds = 8

// RequestMix returns n requests of about the given number of tokens each: greedy, seeded temperature,
// penalties, several choices, stop strings, log-probabilities, JSON of a schema, and a plain completion, in
// turn.
func RequestMix(n, tokens int) []Request {
	mix := make([]Request, n)
	for i := range mix {
		mix[i] = newMixRequest(i, tokens)
	}
	return mix
}

func newMixRequest(i, tokens int) Request {
	group := i / requestKinds
	body := map[string]any{
		"model": Model, "max_tokens": tokens, "temperature": 0, "ignore_eos": true,
		"messages": []map[string]string{
			{"role": "system", "content": strings.Repeat(fmt.Sprintf("You keep gate %d of the sluice and write down what passes. ", group%4), 4)},
			{"role": "user", "content": fmt.Sprintf("What passed in hour %d, and where did the water go?", i)},
		},
	}
	r := Request{Path: "/v1/chat/completions", Body: body}
	switch i % requestKinds {
	case 0:
		r.Name = "greedy"
	case 1:
		r.Name = "seeded"
		body["temperature"], body["seed"], body["top_p"] = 1.1, 100+i, 0.95
	case 2:
		r.Name = "penalties"
		body["temperature"], body["seed"], body["frequency_penalty"], body["presence_penalty"] = 0.8, 200+i, 0.7, 0.3
	case 3:
		r.Name = "n=2"
		body["temperature"], body["seed"], body["n"] = 0.9, 300+i, 2
	case 4:
		r.Name = "stop" // the stop string is chosen when the answer is known
		body["temperature"], body["seed"] = 0.9, 400+i
	case 5:
		r.Name = "logprobs"
		body["logprobs"], body["top_logprobs"] = true, 3
	case 6:
		r.Name = "json_schema"
		delete(body, "ignore_eos")
		body["temperature"], body["seed"] = 1, 500+i
		body["response_format"] = map[string]any{"type": "json_schema", "json_schema": map[string]any{"name": "log", "schema": map[string]any{
			"type": "object", "additionalProperties": false, "required": []string{"gate", "entries"},
			"properties": map[string]any{
				"gate":    map[string]any{"type": "integer", "minimum": 0, "maximum": 99},
				"entries": map[string]any{"type": "array", "minItems": 4, "maxItems": 8, "items": map[string]any{"type": "string", "minLength": 8, "maxLength": 24}},
			},
		}}}
	case 7:
		r.Name = "completion"
		r.Path = "/v1/completions"
		delete(body, "messages")
		body["prompt"] = strings.Repeat(fmt.Sprintf("Hour %d: the gate of field %d is open. ", i, group), 6)
		body["temperature"], body["seed"], body["min_p"] = 0.7, 600+i, 0.02
	}
	return r
}

// LongRequests returns n requests as RequestMix does, without schemas, whose prompts have about so many words, and of
// which no two begin alike.
func LongRequests(n, tokens, words int) []Request {
	mix := make([]Request, 0, n)
	for i := 0; len(mix) < n; i++ {
		r := newMixRequest(i, tokens)
		if r.IsGuided() {
			continue
		}
		var story strings.Builder
		for j := range words {
			fmt.Fprintf(&story, "%s ", storyWords[(i*31+j*j*7+j*(i+3))%len(storyWords)])
		}
		if r.Path == "/v1/completions" {
			r.Body["prompt"] = fmt.Sprintf("Report %d. %s", i, &story)
		} else {
			r.Body["messages"] = []map[string]string{{"role": "user", "content": fmt.Sprintf("Report %d. %s What passed, and where did the water go?", i, &story)}}
		}
		mix = append(mix, r)
	}
	return mix
}

var storyWords = strings.Fields("the gate of field water goes down hour litres pass sluice open river stone day keep turn wheel night")

// PictureRequests returns n requests of about the given number of tokens each with an image, for engines with
// vision: greedy and seeded ones, in turn.
func PictureRequests(n, tokens int) ([]Request, error) {
	mix := make([]Request, n)
	for i := range mix {
		picture, err := pictureFile(i, 112, encodePNG)
		if err != nil {
			return nil, err
		}
		mix[i] = mediaRequest("picture", i, tokens, "image", "data:image/png;base64,"+picture)
	}
	return mix, nil
}

// The sizes of the media of MediaRequests: 256 tokens for a picture, 128 for a video.
const (
	largeSide, videoSide, videoFrames = 448, 224, 4
)

// MediaRequests returns n requests which take an encoder longer than PictureRequests: each second one shows a
// large picture, the others a video of JPEG frames.
func MediaRequests(n, tokens int) ([]Request, error) {
	mix := make([]Request, n)
	for i := range mix {
		if i%2 == 0 {
			picture, err := pictureFile(i, largeSide, encodePNG)
			if err != nil {
				return nil, err
			}
			mix[i] = mediaRequest("large picture", i/2, tokens, "image", "data:image/png;base64,"+picture)
			continue
		}
		frames := make([]string, videoFrames)
		for j := range frames {
			var err error
			if frames[j], err = pictureFile(videoFrames*i+j, videoSide, encodeJPEG); err != nil {
				return nil, err
			}
		}
		mix[i] = mediaRequest("video", i/2, tokens, "video", "data:video/jpeg;base64,"+strings.Join(frames, ","))
	}
	return mix, nil
}

// mediaRequest returns a request about one object.
func mediaRequest(name string, i, tokens int, kind, url string) Request {
	body := map[string]any{
		"model": Model, "max_tokens": tokens, "temperature": 0, "ignore_eos": true,
		"messages": []map[string]any{{"role": "user", "content": []map[string]any{
			{"type": kind + "_url", kind + "_url": map[string]any{"url": url}},
			{"type": "text", "text": "What is in the picture, and where does the water go?"},
		}}},
	}
	if i%2 == 1 {
		body["temperature"], body["seed"] = 1, 700+i
	}
	return Request{Name: name, Path: "/v1/chat/completions", Body: body}
}

func encodePNG(w io.Writer, p image.Image) error  { return png.Encode(w, p) }
func encodeJPEG(w io.Writer, p image.Image) error { return jpeg.Encode(w, p, nil) }

// pictureFile returns the base64 of a file with an image, a different one for each i.
func pictureFile(i, side int, encode func(io.Writer, image.Image) error) (string, error) {
	p := image.NewGray(image.Rect(0, 0, side, side))
	for at := range p.Pix {
		p.Pix[at] = byte(at%side*(i+1) + at/side*3)
	}
	var b bytes.Buffer
	if err := encode(&b, p); err != nil {
		return "", fmt.Errorf("picture %d: %w", i, err)
	}
	return base64.StdEncoding.EncodeToString(b.Bytes()), nil
}

// withField returns the request with one more field.
func (r Request) withField(key string, value any) Request {
	r.Body = maps.Clone(r.Body)
	r.Body[key] = value
	return r
}

// LearnAnswers sends each request once, undisturbed, and returns it with its answer. A request of the kind
// "stop" gets a stop string from the middle of its answer without one.
func LearnAnswers(ctx context.Context, client *Client, url string, mix []Request) ([]KnownRequest, error) {
	known := make([]KnownRequest, len(mix))
	for i, r := range mix {
		want, err := learnAnswer(ctx, client, url, r)
		if err != nil {
			return nil, err
		}
		if r.Name == "stop" {
			text := []rune(want.Choices[0].Text)
			middle := len(text) / 2
			r = r.withField("stop", []string{string(text[middle:min(middle+4, len(text))])})
			if want, err = learnAnswer(ctx, client, url, r); err != nil {
				return nil, err
			}
		}
		known[i] = KnownRequest{Request: r, Want: want}
	}
	return known, nil
}

func learnAnswer(ctx context.Context, client *Client, url string, r Request) (Answer, error) {
	out := client.Stream(ctx, url, r, nil)
	if out.Err != nil {
		return Answer{}, fmt.Errorf("learn the answer of request %s: %w", r.Name, out.Err)
	}
	if len(out.Answer.Choices) == 0 || out.Answer.Output == 0 || out.Answer.Choices[0].Text == "" && r.Body["stop"] == nil {
		return Answer{}, fmt.Errorf("learn the answer of request %s: it has no text", r.Name)
	}
	return out.Answer, nil
}
