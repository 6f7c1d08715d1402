package config

import (
	"fmt"
	"strings"
	"time"
)

// Media are the settings for images, videos and audio in requests.
type Media struct {
	MediaIdentity     string   `key:"media-identity" group:"media" on:"up,frontend,router" help:"what images, videos and sounds are known by: url (as sent, data: URIs by their bytes; only the beginning of a file is fetched, for its size), bytes (of the file), or pixels (what it shows, whatever the file); models with frontend-decoding are always known by pixels"`
	MediaURLTTL       Duration `key:"media-url-ttl" group:"media" on:"up,frontend,router" help:"time for which a URL counts as showing the same; 0s is for ever"`
	MediaAllowPrivate bool     `key:"media-allow-private" group:"media" bare:"true" on:"up,frontend,worker,router" help:"fetch media from addresses of private networks and of this machine too"`
	MediaAllowHosts   []string `key:"media-allow-hosts" group:"media" on:"up,frontend,worker,router" help:"host that media are fetched from, and no other: example.com, or .example.com for it and all below it; repeatable; none is every host"`
	MediaMaxBytes     int64    `key:"media-max-bytes" group:"media" on:"up,frontend,worker,router" help:"largest file of an image, video or sound"`
	MediaMaxPixels    int64    `key:"media-max-pixels" group:"media" on:"up,frontend,worker,router" help:"largest image, in pixels, and largest sum over the frames of a video that is decoded here"`
	MediaMaxObjects   int      `key:"media-max-objects" group:"media" on:"up,frontend,router" help:"images, videos and sounds that a request may show, at most 256"`
	MediaTimeout      Duration `key:"media-timeout" group:"media" on:"up,frontend,worker,router" help:"time that the media of a request have to be fetched and looked at"`
	MediaMinRate      int64    `key:"media-min-rate" group:"media" on:"up,frontend,worker,router" help:"least bytes a second at which a file of media must come, over each three seconds; 0 takes any"`
	MediaCacheBytes   int64    `key:"media-cache-bytes" group:"media" on:"up,frontend,worker,router" help:"memory of files of media that are being fetched, in use, or kept for the next request"`
	FrontendDecoding  bool     `key:"frontend-decoding" group:"media" bare:"true" on:"up,worker" help:"have frontends fetch and decode media for the engine: they are known by their pixels then, whatever URL they come from"`
	MMTransfer        string   `key:"mm-transfer" group:"media" on:"up,worker" help:"how what frontends decoded reaches the engine, if it takes media with tokens: shm (shared memory of the same host; elsewhere the engine fetches), network (with the request), or off (the engine fetches). Off also keeps what an engine's own processor made of media from other engines"`
}

func defaultMedia() Media {
	return Media{
		MediaIdentity:   "url",
		MediaURLTTL:     Duration(time.Hour),
		MediaAllowHosts: []string{},
		MediaMaxBytes:   64 << 20,
		MediaMaxPixels:  1 << 25,
		MediaMaxObjects: 32,
		MediaTimeout:    Duration(10 * time.Second),
		MediaMinRate:    16 << 10,
		MediaCacheBytes: 256 << 20,
		MMTransfer:      "shm",
	}
}

// maxMediaObjects bounds the setting for media objects per request.
const maxMediaObjects = 256

// checkMedia checks the settings of media.
func (p *problems) checkMedia(c *Config) {
	p.requireOneOf("media-identity", c.MediaIdentity, "url", "bytes", "pixels")
	if c.MediaURLTTL < 0 {
		p.report("media-url-ttl", fmt.Sprintf("%v must not be negative; 0s is for ever", c.MediaURLTTL))
	}
	for _, h := range c.MediaAllowHosts {
		if strings.Trim(h, ".") == "" || strings.ContainsAny(h, "/:*@ ") {
			p.report("media-allow-hosts", fmt.Sprintf("%.100q is no name of a host: write example.com, or .example.com for all below it", h))
		}
	}
	p.requireBetween("media-max-bytes", c.MediaMaxBytes, 1024, 1<<32)
	p.requireBetween("media-max-pixels", c.MediaMaxPixels, 1024, 1<<30)
	p.requireBetween("media-max-objects", int64(c.MediaMaxObjects), 1, maxMediaObjects)
	p.requirePositive("media-timeout", c.MediaTimeout)
	p.requireBetween("media-min-rate", c.MediaMinRate, 0, 1<<30)
	if least := c.MediaMaxBytes + (c.MediaMaxBytes+1)/2; c.MediaCacheBytes < least {
		p.report("media-cache-bytes", fmt.Sprintf("%d has no room for one file of media-max-bytes: at least %d are needed", c.MediaCacheBytes, least))
	}
	if c.MMTransfer == "nixl" {
		p.report("mm-transfer", "nixl is not what is spoken here: use network")
		return
	}
	p.requireOneOf("mm-transfer", c.MMTransfer, "shm", "network", "off")
}
