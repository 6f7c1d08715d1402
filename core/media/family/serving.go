package family

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"

	"penstock/core/media"
)

// Serving is what the engine of a model adds to the files of its checkpoint. The zero value is an engine
// which passes all frames to the processor and calls it as the files say.
type Serving struct {
	Loader Loader
	// ProcessorArgs are the arguments with which the engine calls the processor: a JSON object like vLLM's
	// --mm-processor-kwargs, flat or split into images_kwargs, videos_kwargs and audio_kwargs; "" for none.
	ProcessorArgs string
}

// processorArg is an argument of a processor which replaces a setting of the files.
type processorArg struct {
	key  string
	kind media.Kind // 0 if it applies to all kinds
}

// argScopes maps the names of the objects with the arguments of one kind to the kind.
func argScopes() map[string]media.Kind {
	return map[string]media.Kind{"images_kwargs": media.Image, "videos_kwargs": media.Video, "audio_kwargs": media.Audio}
}

// isHarmless reports whether an argument does not affect the number of tokens.
func isHarmless(key string) bool {
	return slices.Contains([]string{
		"return_tensors", "device", "use_fast", "do_rescale", "rescale_factor", "do_normalize", "image_mean", "image_std",
		"do_convert_rgb", "resample", "data_format", "input_data_format", "disable_grouping",
	}, key)
}

// applyArgs replaces settings of the files by the arguments of a processor. Arguments for one kind override
// those for all kinds.
func (s *configSource) applyArgs(args string) {
	if args == "" || s.err != nil {
		return
	}
	all := s.parseObject("mm-processor-kwargs", []byte(args))
	flat, own := map[string]json.RawMessage{}, map[media.Kind]map[string]json.RawMessage{}
	for key, value := range all.fields {
		kind, scoped := argScopes()[key]
		if !scoped {
			flat[key] = value
			s.arguments = append(s.arguments, processorArg{key: key})
			continue
		}
		own[kind] = s.getObject(all, key).fields
		for key := range own[kind] {
			s.arguments = append(s.arguments, processorArg{key, kind})
		}
	}
	slices.SortFunc(s.arguments, func(a, b processorArg) int { return bytes.Compare([]byte(a.key), []byte(b.key)) })
	for kind, o := range map[media.Kind]*jsonObject{media.Image: &s.image, media.Video: &s.video, media.Audio: &s.audio} {
		given := maps.Clone(flat)
		maps.Copy(given, own[kind])
		*o = s.withOverrides(*o, given)
	}
}

// withOverrides returns o with the given settings. In a size, the given edges replace o's, under
// either of their names.
func (s *configSource) withOverrides(o jsonObject, given map[string]json.RawMessage) jsonObject {
	with := jsonObject{where: o.where, fields: maps.Clone(o.fields), readKeys: map[string]bool{}}
	if with.fields == nil {
		if len(given) == 0 {
			return o
		}
		with.fields = map[string]json.RawMessage{}
	}
	for key, value := range given {
		with.fields[key] = value
	}
	edges := jsonObject{where: "mm-processor-kwargs", fields: given}
	if !edges.has("size") {
		return with
	}
	size := maps.Clone(s.getObject(o, "size").fields)
	if size == nil {
		size = map[string]json.RawMessage{}
	}
	for key, value := range s.getObject(edges, "size").fields {
		size[key] = value
		for edge, pixels := range map[string]string{"shortest_edge": "min_pixels", "longest_edge": "max_pixels"} {
			if _, both := given[pixels]; key == edge && !both {
				delete(with.fields, pixels)
			}
		}
	}
	with.fields["size"], _ = json.Marshal(size) // raw values which were decoded before
	return with
}

// checkArgs refuses a family with arguments which no rule knows. It refuses only a kind if the arguments
// apply to that kind alone and the family has others.
func (s *configSource) checkArgs(f *Family) {
	of := map[media.Kind]jsonObject{media.Image: s.image, media.Video: s.video, media.Audio: s.audio}
	for _, a := range s.arguments {
		if isHarmless(a.key) || a.kind != 0 && (!f.Supports(a.kind) || of[a.kind].readKeys[a.key]) {
			continue
		}
		if a.kind == 0 && slices.ContainsFunc([]media.Kind{media.Image, media.Video, media.Audio}, func(k media.Kind) bool { return of[k].readKeys[a.key] }) {
			continue
		}
		why := newUnsupported("%s of mm-processor-kwargs is not modelled", a.key)
		if a.kind != media.Video || !f.Supports(media.Image) {
			s.err = why
			return
		}
		f.rules[media.Video], f.whyMissing[media.Video] = nil, why.Detail
	}
}
