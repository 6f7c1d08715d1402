package config

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// applyDynamoVariables applies variables of Dynamo which mean one of our settings. Those which are set and have no
// effect are listed in a notice. DYN_REQUEST_PLANE, DYNAMO_MM_TRANSFER and
// DYN_MULTIMODAL_EMBEDDING_CACHE_GB have the values of ours.
func (l *Loaded) applyDynamoVariables(environ []string) {
	var unread []string
	disabled := ""
	for _, kv := range environ {
		name, value, _ := strings.Cut(kv, "=")
		switch {
		case value == "" || !strings.HasPrefix(name, "DYN_") && !strings.HasPrefix(name, "DYNAMO_"):
		case name == "DYN_REQUEST_PLANE" && l.Command != Up:
			l.RPC.Plane, l.origin["request-plane"] = value, "env "+name
		case name == "DYNAMO_MM_TRANSFER":
			l.Media.Transfer, l.origin["mm-transfer"] = value, "env "+name
		case name == "DYN_MULTIMODAL_EMBEDDING_CACHE_GB" && l.Command.HasEngines():
			if gib, err := parseGiB(value); err != nil {
				unread = append(unread, name)
			} else {
				l.Media.EmbeddingCache, l.origin["embedding-cache-capacity-gb"] = gib, "env "+name
			}
		case name == "DYNAMO_DISABLE_NIXL_MM":
			if on, err := strconv.ParseBool(value); err != nil {
				unread = append(unread, name)
			} else if on {
				disabled = name
			}
		case name == "DYN_LOG" && dynamoLogLevels(value) != "":
			l.Log.Level, l.origin["log-level"] = dynamoLogLevels(value), "env "+name
		default:
			unread = append(unread, name)
		}
	}
	if disabled != "" { // whatever the transfer would be
		l.Media.Transfer, l.origin["mm-transfer"] = "off", "env "+disabled
	}
	if len(unread) > 0 {
		slices.Sort(unread)
		l.notices = append(l.notices, Notice{"variables of Dynamo are set which have no effect here", unread})
	}
}

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

// parseGiB parses the size of an embedding cache in GiB.
func parseGiB(text string) (float64, error) {
	gib, err := strconv.ParseFloat(text, 64)
	if err != nil || !(gib >= 0 && gib <= MaxEmbeddingCache) {
		return 0, fmt.Errorf("%.40q is not a number of GiB between 0 and %d", text, MaxEmbeddingCache)
	}
	return gib, nil
}

// applyDynamoCache lets multimodal-embedding-cache-capacity-gb decide embedding-cache-capacity-gb.
func (l *Loaded) applyDynamoCache() error {
	const ours, theirs = "embedding-cache-capacity-gb", "multimodal-embedding-cache-capacity-gb"
	if l.Media.DynamoCache == "" {
		return nil
	}
	gib, err := parseGiB(l.Media.DynamoCache)
	switch {
	case err != nil:
		return fmt.Errorf("%s: %w", theirs, err)
	case l.IsSet(ours) && l.Media.EmbeddingCache != gib:
		return fmt.Errorf("%s is %v and %s is %v (%s): give one of them", theirs, gib, ours, l.Media.EmbeddingCache, l.origin[ours])
	}
	l.Media.EmbeddingCache, l.origin[ours] = gib, l.origin[theirs]
	return nil
}
