package config

import (
	"fmt"
	"slices"
	"strings"
)

// Names of Dynamo's settings which mean one of ours. DYN_REQUEST_PLANE, DYNAMO_MM_TRANSFER and
// DYN_MULTIMODAL_EMBEDDING_CACHE_GB have the values of ours;
// see applyEnvironment.

// dynamoLogLevels translates a filter of DYN_LOG, such as info,lightseek_mm=debug, to our log-level; "" if it says
// nothing about this program. It drops levels of modules which are no component here, and what it cannot read: a
// variable of another system does not keep a process from starting.
func dynamoLogLevels(filter string) string {
	var levels []string
	base := ""
	for directive := range strings.SplitSeq(filter, ",") {
		component, level, ok := strings.Cut(strings.TrimSpace(directive), "=")
		if !ok {
			level, component = component, ""
		}
		level = ownLevel(level)
		switch {
		case level == "":
		case component == "":
			base = level
		case slices.Contains(LogComponents(), component):
			levels = append(levels, component+"="+level)
		}
	}
	switch {
	case base != "":
		levels = append([]string{base}, levels...)
	case len(levels) > 0:
		levels = append([]string{"info"}, levels...)
	}
	return strings.Join(levels, ",")
}

// ownLevel returns the level here for one of Dynamo's; "" if it is none.
func ownLevel(level string) string {
	switch level = strings.ToLower(level); level {
	case "trace", "debug":
		return "debug"
	case "info", "warn", "error":
		return level
	case "off":
		return "error"
	}
	return ""
}

// applyChatProcessor lets dyn-chat-processor decide preprocess.
func (l *Loaded) applyChatProcessor() error {
	var means string
	switch l.Engine.ChatProcessor {
	case "":
		return nil
	case "dynamo":
		means = "local"
	case "vllm":
		means = "engine"
	default:
		return fmt.Errorf("dyn-chat-processor: %.40q is not one of dynamo, vllm", l.Engine.ChatProcessor)
	}
	if l.origin["preprocess"] != "default" && l.Engine.Preprocess != means {
		return fmt.Errorf("dyn-chat-processor %s means preprocess %s, and preprocess is %s (%s): give one of them", l.Engine.ChatProcessor, means, l.Engine.Preprocess, l.origin["preprocess"])
	}
	l.Engine.Preprocess, l.origin["preprocess"] = means, l.origin["dyn-chat-processor"]
	return nil
}

// applyDynamoCache lets multimodal-embedding-cache-capacity-gb decide embedding-cache-capacity-gb.
func (l *Loaded) applyDynamoCache() error {
	const ours, theirs = "embedding-cache-capacity-gb", "multimodal-embedding-cache-capacity-gb"
	m := &l.Media
	switch {
	case !l.IsSet(theirs):
		return nil
	case l.IsSet(ours) && m.EmbeddingCache != m.DynamoCache:
		return fmt.Errorf("%s is %v and %s is %v (%s): give one of them", theirs, m.DynamoCache, ours, m.EmbeddingCache, l.origin[ours])
	}
	m.EmbeddingCache, l.origin[ours] = m.DynamoCache, l.origin[theirs]
	return nil
}
