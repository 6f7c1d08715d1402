package node

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"penstock/internal/enginemock/enginemocktest"
	"penstock/internal/fixturetest"
	"penstock/internal/node/engines"

	"penstock/core/media"
	"penstock/internal/backoff"
	"penstock/internal/config"
	"penstock/internal/doctor"
	"penstock/internal/edge/prep/chat"
	"penstock/internal/engine"
	"penstock/internal/engine/remote"
	"penstock/internal/enginemock"
)

// exportMediaModel writes a checkpoint of a family of models with media, around the built-in tokenizer.
func exportMediaModel(t *testing.T, family string) (dir string) {
	t.Helper()
	pipe, err := chat.Open(chat.Ref{Kind: "builtin"})
	if err != nil {
		t.Fatal(err)
	}
	image, _ := pipe.Family.Placeholder(media.Image)
	video, _ := pipe.Family.Placeholder(media.Video)
	audio, _ := pipe.Family.Placeholder(media.Audio)
	facts := map[string]any{
		"vocab_size": 4096, "max_position_embeddings": 4096, "model_type": family, "image_token_id": image, "video_token_id": video, "audio_token_id": audio,
		"vision_start_token_id": 7, "vision_end_token_id": 8,
	}
	processor := `{"min_pixels":3136,"max_pixels":12845056}`
	switch family {
	case "qwen3_vl":
		processor = `{"size":{"shortest_edge":65536,"longest_edge":16777216}}`
	case "qwen2_audio":
		processor = `{"feature_extractor_type":"WhisperFeatureExtractor","sampling_rate":16000,"hop_length":160,"chunk_length":30}`
	}
	config, err := json.Marshal(facts)
	if err != nil {
		t.Fatal(err)
	}
	dir = enginemocktest.WriteCheckpoint(t, string(config), "")
	if err := os.WriteFile(filepath.Join(dir, "preprocessor_config.json"), []byte(processor), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

// checkedEngine returns /health's status of the only engine once its media were compared.
func checkedEngine(t *testing.T, url string) engines.Status {
	t.Helper()
	var e engines.Status
	if err := backoff.Poll(t.Context(), time.Millisecond, func() bool {
		var health struct{ Engines []engines.Status }
		getJSON(t, url+"/health", &health)
		if len(health.Engines) == 1 {
			e = health.Engines[0]
		}
		return e.MediaChecks != nil
	}); err != nil {
		t.Fatal(err)
	}
	return e
}

func getJSON(t *testing.T, url string, v any) {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, v); err != nil {
		t.Fatalf("%s: %v: %.300s", url, err, b)
	}
}

// TestMediaCountsDiffer: an engine whose media tokens differ from the counts here is detected when it starts,
// for each known kind of difference. It is reported with a remedy, by /health, among the workers and by the
// doctor, and the kind is routed by text from then on. Without a difference nothing is reported.
func TestMediaCountsDiffer(t *testing.T) {
	off := func(of func(*enginemock.Features) *enginemock.Switch) func(*enginemock.Config) {
		return func(c *enginemock.Config) { *of(&c.Features) = enginemock.Off }
	}
	sequences := off(func(f *enginemock.Features) *enginemock.Switch { return &f.Sequences })
	sampling := off(func(f *enginemock.Features) *enginemock.Switch { return &f.Sampling })
	roundUp := off(func(f *enginemock.Features) *enginemock.Switch { return &f.RoundUp })
	args := func(text string) func(*enginemock.Config) {
		return func(c *enginemock.Config) { c.ProcessorArgs = text }
	}
	for name, c := range map[string]struct {
		family string
		differ func(*enginemock.Config)
		spec   string // more of the value of --engine
		kind   string // that differs; "" if none does
		sample string
	}{
		"qwen2 agrees":             {family: "qwen2_vl"},
		"qwen3 agrees":             {family: "qwen3_vl"},
		"sounds agree":             {family: "qwen2_audio"},
		"JPEG sequences of qwen3":  {"qwen3_vl", sequences, "", "video", "a JPEG sequence of 40 frames"},
		"JPEG sequences of qwen2":  {"qwen2_vl", sequences, "", "video", "a JPEG sequence of 40 frames"},
		"GIFs of qwen2":            {"qwen2_vl", sampling, "", "video", "a GIF of 45 frames at 10 a second"},
		"sounds of 44.1 kHz":       {"qwen2_audio", roundUp, "", "audio", "a sound of 44.1 kHz"},
		"arguments not named":      {"qwen2_vl", args(`{"max_pixels":50176}`), "", "image", "a picture of 1344 by 1008 pixels"},
		"small arguments":          {"qwen2_vl", args(`{"images_kwargs":{"min_pixels":50176}}`), "", "image", "a picture of 112 by 84 pixels"},
		"arguments named":          {"qwen2_vl", args(`{"max_pixels":50176,"min_pixels":784}`), `,mm-processor-kwargs={"max_pixels":50176, "min_pixels":784}`, "", ""},
		"arguments named in vain":  {"qwen2_vl", nil, `,mm-processor-kwargs={"images_kwargs":{"max_pixels":50176}}`, "image", "a picture of 1344 by 1008 pixels"},
		"arguments, of qwen3":      {"qwen3_vl", args(`{"images_kwargs":{"size":{"longest_edge":100352}}}`), `,mm-processor-kwargs={"images_kwargs":{"size":{"longest_edge":100352}}}`, "", ""},
		"arguments for one kind":   {"qwen3_vl", args(`{"videos_kwargs":{"fps":1}}`), "", "", ""}, // the loader ignores it
		"sounds, and not compared": {"qwen2_audio", roundUp, ",media-check=off", "", "off"},
	} {
		for _, render := range []enginemock.Switch{enginemock.On, enginemock.Off} {
			if render == enginemock.Off && c.family != "qwen2_vl" { // one family shows that both ways to ask work
				continue
			}
			t.Run(fmt.Sprintf("%s, render %v", name, render == enginemock.On), func(t *testing.T) {
				spec, _ := enginemocktest.StartEngineMock(t, enginemock.VLLM, exportMediaModel(t, c.family), func(m *enginemock.Config) {
					m.Features.Tokens = render
					if c.differ != nil {
						c.differ(m)
					}
				})
				r, log := startUp(t, "ENGINE="+spec+c.spec)
				if c.sample == "off" {
					if e := r.Engines[0]; e.MediaChecks != nil || e.Warnings != nil {
						t.Errorf("%+v", e)
					}
					return
				}
				e := checkedEngine(t, r.URL)
				if len(e.MediaChecks) == 0 {
					t.Fatal("nothing was compared")
				}
				for _, m := range e.MediaChecks {
					if m.Unchecked != "" || m.Counted == 0 || m.Differs() && m.Kind != c.kind {
						t.Errorf("%+v", m)
					}
				}
				i := slices.IndexFunc(e.MediaChecks, func(m engine.MediaCheck) bool { return m.Differs() && strings.HasPrefix(m.Sample, c.sample) })
				w := slices.IndexFunc(e.Warnings, func(w engine.Warning) bool { return w.Code == engine.WarnMediaCounts })
				if (i >= 0) != (c.kind != "") || (w >= 0) != (c.kind != "") {
					t.Fatalf("%+v\n%+v", e.MediaChecks, e.Warnings)
				}
				if c.kind == "" {
					return
				}
				if said := e.Warnings[w].Detail + e.Warnings[w].Remedy; !strings.Contains(said, e.MediaChecks[i].Sample) || !strings.Contains(said, c.kind+" are routed") || !strings.Contains(said, "mm-processor-kwargs=") || len(said) > 400 {
					t.Errorf("it says %q", said)
				}
				if c.kind == "audio" { // one kind shows that the workers' reports have it, which takes a moment
					waitFor(t, func() bool {
						return slices.ContainsFunc(warningsIn(t, r.URL), func(w engine.Warning) bool {
							return w.Code == engine.WarnMediaCounts && strings.Contains(w.Detail, c.sample)
						})
					})
					wantFinding(t, doctor.Examination{Server: r.URL}, engine.WarnMediaCounts, c.sample)
				}
				showsRoutedByText(t, r.URL, c.kind)
				if err := backoff.Poll(t.Context(), time.Millisecond, func() bool { return strings.Contains(log.String(), "media_counts_differ") }); err != nil {
					t.Errorf("the log does not say it: %s", log)
				}
				if n := strings.Count(log.String(), "media_counts_differ"); n != 1 {
					t.Errorf("the log says it %d times", n)
				}
			})
		}
	}
}

// TestMediaCountsDifferOfEngines: the counts of engines without an endpoint that renders are compared, too.
func TestMediaCountsDifferOfEngines(t *testing.T) {
	for _, c := range []struct {
		dialect  enginemock.Dialect
		args     string // with which the engine calls its processor
		spec     string
		reported bool
	}{
		{enginemock.SGLang, "", "", false},
		{enginemock.SGLang, `{"max_pixels":50176}`, "", true},
		{enginemock.TRTLLM, "", ",media=image,media-keys=uuid", false},
		{enginemock.TRTLLM, `{"max_pixels":50176}`, ",media=image,media-keys=uuid", true},
		{enginemock.LlamaCPP, "", ",media=image,media-keys=uuid", false},
		{enginemock.LlamaCPP, `{"max_pixels":50176}`, ",media=image,media-keys=uuid", true},
	} {
		t.Run(fmt.Sprint(c.dialect, c.args, c.spec), func(t *testing.T) {
			dir := exportMediaModel(t, "qwen2_vl")
			spec, _ := enginemocktest.StartEngineMock(t, c.dialect, dir, func(m *enginemock.Config) { m.ProcessorArgs = c.args })
			r, _ := startUp(t, "MODEL_PATH="+dir, "ENGINE="+spec+c.spec)
			e := checkedEngine(t, r.URL)
			for _, m := range e.MediaChecks {
				if m.Kind == "image" && m.Unchecked != "" {
					t.Errorf("%+v", m)
				}
			}
			if slices.ContainsFunc(e.MediaChecks, func(m engine.MediaCheck) bool { return m.Differs() }) != c.reported {
				t.Errorf("%+v", e.MediaChecks)
			}
			if slices.ContainsFunc(e.Warnings, func(w engine.Warning) bool { return w.Code == engine.WarnMediaCounts }) != c.reported {
				t.Errorf("%+v", e.Warnings)
			}
		})
	}
}

// TestDoctorAsksEngines: the doctor waits for what its adapter asks an engine before a process serves with it:
// how it counts media, and whether it keeps cache salts apart.
func TestDoctorAsksEngines(t *testing.T) {
	for _, c := range []struct {
		dialect      enginemock.Dialect
		change       func(*enginemock.Config)
		code, detail string
	}{
		{enginemock.VLLM, func(m *enginemock.Config) { m.ProcessorArgs = `{"max_pixels":50176}` }, engine.WarnMediaCounts, "a picture of 1344 by 1008 pixels"},
		{enginemock.VLLM, ignoreSalts, engine.WarnSaltsRefused, "it reuses for one salt what it cached for another"},
		{enginemock.SGLang, ignoreSalts, engine.WarnSaltsRefused, "it reuses for one salt what it cached for another"},
		{enginemock.SGLang, func(m *enginemock.Config) { m.EngineVersion = "0.5.9" }, engine.WarnSaltsRefused, "it reuses for one salt what it cached for another"},
		{enginemock.LlamaCPP, func(m *enginemock.Config) { ignoreSalts(m); m.Slots = 1 }, engine.WarnSaltsRefused, "it reuses for one salt what it cached for another"},
	} {
		spec, _ := enginemocktest.StartEngineMock(t, c.dialect, exportMediaModel(t, "qwen2_vl"), c.change)
		wantFinding(t, doctor.Examination{Config: enginemocktest.LoadSettings(t, config.Up, "HTTP_ADDR=127.0.0.1:0", "ENGINE="+spec)}, c.code, c.detail)
	}
}

func ignoreSalts(m *enginemock.Config) {
	m.Faults = append(m.Faults, enginemock.Fault{Kind: enginemock.FaultSalts})
}

// wantFinding requires that the doctor warns of code, with detail and a remedy.
func wantFinding(t *testing.T, of doctor.Examination, code, detail string) {
	t.Helper()
	all := doctor.Examine(t.Context(), of)
	if !slices.ContainsFunc(all, func(f doctor.Finding) bool {
		return strings.HasPrefix(f.Check, code) && f.Status == doctor.CheckWarn && strings.Contains(f.Detail, detail) && f.Remedy != ""
	}) {
		t.Errorf("the doctor does not find %s: %+v", code, all)
	}
}

// showsRoutedByText waits until a request with an object of a kind is routed by its text, for that reason.
func showsRoutedByText(t *testing.T, url, kind string) {
	t.Helper()
	body := fmt.Sprintf(`{"model":"m","max_tokens":1,"messages":[{"role":"user","content":[%s]}]}`, samplePart(kind))
	for end := time.Now().Add(fixturetest.TimeLeft(t)); time.Now().Before(end); {
		resp, err := http.Post(url+"/v1/chat/completions", "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		answer, _ := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			t.Fatalf("%d %s", resp.StatusCode, answer)
		}
		metrics, err := http.Get(url + "/metrics")
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(metrics.Body)
		_ = metrics.Body.Close()
		if bytes.Contains(text, []byte(`reason="counts_differ"`)) {
			return
		}
	}
	t.Error("no request was routed by its text for that reason")
}

// samplePart is the message part of a small object of a kind.
func samplePart(kind string) string { return string(remote.SamplePart(kind)) }
