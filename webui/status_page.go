package webui

import (
	"strconv"
	"unicode/utf8"

	g "maragu.dev/gomponents"
	h "maragu.dev/gomponents/html"
)

// statusPage is the page for who has signed in. Each section's content is a fragment that the event stream renders
// again, into the element with the same id.
func statusPage(f frame, v view, csrf string) g.Node {
	head := g.Group{
		f.tabIcon(v.Summary.Level, h.ID("icon"), h.Data("ok", f.iconURL(levelOK)), h.Data("idle", f.iconURL(levelIdle)),
			h.Data("warning", f.iconURL(levelWarning)), h.Data("error", f.iconURL(levelError))),
		h.Script(h.Src(f.assets["page.js"].url), h.Defer()),
		h.NoScript(h.Meta(g.Attr("http-equiv", "refresh"), h.Content("5"))),
	}
	return f.page(head, h.Body(
		h.Header(h.Class("top"),
			brand(),
			h.P(h.Class("gateway"), g.Text(f.gateway)),
			h.P(h.Class("meta"),
				g.If(v.Version != "", h.Span(g.Text("Version "+v.Version))),
				g.If(v.Started.isSet(), h.Span(g.Text("Running for "), ago(v.Started)))),
			h.Form(h.Method("post"), h.Action("/sign-out"), token(csrf), h.Button(h.Type("submit"), h.Class("quiet"), g.Text("Sign out"))),
		),
		h.P(h.ID("stale"), h.Class("stale"), h.Role("alert"), g.Attr("hidden"),
			g.Text("No connection to the gateway. The figures below are "), h.Time(h.ID("stale-age")), g.Text(" old.")),
		h.Main(h.Class("board"),
			h.Div(h.ID("summary"), summarySection(v.Summary)),
			h.Section(h.ID("problems"), h.Aria("label", "Problems"), problemsSection(v.Problems)),
			h.Div(h.Class("trio"),
				card("uplinks", "Uplinks", uplinksSection(v.Uplinks)),
				card("streams", "Streams", streamsSection(v.Streams, v.Unrouted)),
				card("lanes", "Log on this device", lanesSection(v.Lanes, v.Flash)),
			),
			h.H2(h.Class("apart"), g.Text("Devices")),
			h.Div(h.Class("devices"), devices(v.Devices)),
		),
	))
}

func card(id, heading string, content g.Node) g.Node {
	return h.Section(h.Class("card"), h.Aria("labelledby", "h-"+id), h.H2(h.ID("h-"+id), g.Text(heading)), h.Div(h.ID(id), content))
}

func devices(list []deviceView) g.Node {
	if len(list) == 0 {
		return h.P(h.Class("card empty"), g.Text("No devices are configured. Add one under "), h.Code(g.Text("devices")),
			g.Text(" in the configuration file."))
	}
	return g.Map(list, func(d deviceView) g.Node {
		return h.Section(h.Class("card device"), h.ID(d.ID), h.Aria("label", "Device "+d.Name), deviceSection(d))
	})
}

func summarySection(s summary) g.Node {
	return h.Div(h.Class("summary "+s.Level), h.Data("level", s.Level), h.Data("tab", s.Tab),
		icon(s.Level),
		h.Div(h.Div(h.Role("status"), h.H1(g.Text(s.Headline))), h.P(g.Text(s.Detail))),
	)
}

func problemsSection(list []problemView) g.Node {
	if len(list) == 0 {
		return g.Group{}
	}
	return h.Ul(h.Class("problems"), g.Map(list, func(p problemView) g.Node {
		return h.Li(h.Class(p.Level),
			icon(p.Level),
			h.Div(
				h.P(h.Span(h.Class("away"), g.Text(p.Word+": ")), h.Strong(g.Text(p.Where)), g.Text(" "+p.Text)),
				note("hint", p.Hint)))
	}))
}

func uplinksSection(list []uplinkView) g.Node {
	if len(list) == 0 {
		return note("empty", "No uplinks: nothing leaves this gateway.")
	}
	return g.Map(list, func(u uplinkView) g.Node {
		return h.Article(
			h.Header(h.H3(g.Text(u.Name)), kind(u.Driver+" ← "+u.Stream), pill(u.Level, g.Text(u.State))),
			note("hint", u.Promise),
			note("trouble", u.Error),
			g.If(u.Limit != "", note("trouble warning", "It "+u.Limit+".")),
			h.Dl(
				row("", "Last confirmation", lastAck(u.LastAck)),
				row("", "Confirmed", g.Text(u.Acked+" "), h.I(g.Text(u.Rate+"/s"))),
				g.If(u.Next.isSet(), row("", "Next try", g.Text("in "), until(u.Next))),
				backlog(u.Backlog),
				figure("", "Of these", u.Older),
				figure("", "Sent today", u.Quota),
				figure("warning", "Held back", u.Held),
				figure("warning", "Dead letters", u.DeadLetters)))
	})
}

func lastAck(m moment) g.Node {
	if !m.isSet() {
		return g.Text("none yet")
	}
	return g.Group{ago(m), g.Text(" ago")}
}

func streamsSection(list []streamView, unrouted string) g.Node {
	if len(list) == 0 {
		return note("empty", "No streams are configured.")
	}
	return g.Group{g.Map(list, func(s streamView) g.Node {
		return h.Article(
			h.Header(h.H3(g.Text(s.Name)), kind("lane "+s.Lane), h.Span(h.Class("rate"), h.B(g.Text(s.Rate)), g.Text(" records/s"))),
			h.Dl(
				backlog(s.Backlog),
				row("", "Stored so far", g.Text(s.Records)),
				figure(s.QuotaLevel, "Quota", s.Quota),
				figure("error", "Not taken", s.Refused)))
	}), g.If(unrouted != "", note("hint", unrouted))}
}

func lanesSection(list []laneView, flash string) g.Node {
	if len(list) == 0 {
		return note("empty", "No lanes are configured.")
	}
	return g.Group{lanes(list), g.If(flash != "", note("hint", flash))}
}

func lanes(list []laneView) g.Node {
	return g.Map(list, func(l laneView) g.Node {
		forecast := l.Level
		if forecast == levelOK {
			forecast = ""
		}
		return h.Article(
			h.Header(h.H3(g.Text(l.Name)), kind(l.Segments+" · epoch "+l.Epoch), pill(l.Level, g.Text(l.State))),
			note("trouble", l.Error),
			bar(l.Level, l.Percent),
			h.Dl(h.Class("pairs"),
				row("", "In use", g.Text(l.Used+" of "+l.Limit)),
				row(forecast, "Forecast", g.Text(l.Forecast)),
				figure("warning", "Dropped", l.Dropped),
				figure("warning", "Refused", l.Refused)))
	})
}

func bar(level, percent string) g.Node {
	return h.SVG(h.Class("bar "+level), g.Attr("viewBox", "0 0 100 1"), g.Attr("preserveAspectRatio", "none"), h.Role("img"),
		h.Aria("label", percent+" percent used"),
		g.El("rect", h.Class("track"), h.Width("100"), h.Height("1")),
		g.El("rect", h.Class("fill"), h.Width(percent), h.Height("1")))
}

func deviceSection(d deviceView) g.Node {
	state := g.Group{g.Text(d.State)}
	if d.Since.isSet() {
		state = append(state, g.Text(" for "), ago(d.Since))
	}
	return g.Group{
		h.Header(h.H3(g.Text(d.Name)), kind(d.Driver), pill(d.Level, state)),
		note("trouble "+d.Level, d.Error),
		g.If(len(d.Parts) > 0, h.Ul(h.Class("parts"), g.Map(d.Parts, partItem))),
		values(d.Values),
		g.If(d.Hidden > 0, note("empty", strconv.Itoa(d.Hidden)+" more points are not shown.")),
	}
}

func partItem(p partView) g.Node {
	item := g.Group{icon(p.Level), g.Text(p.Name)}
	if p.Level != levelOK {
		state := p.State
		if p.Error != "" {
			state += ": " + p.Error
		}
		item = append(item, g.Text(" "), h.Em(g.Text(state)))
	}
	return h.Li(h.Class(p.Level), item)
}

func values(list []valueView) g.Node {
	if len(list) == 0 {
		return note("empty", "No values yet.")
	}
	column := func(class string, name g.Node) g.Node {
		return h.Th(h.Scope("col"), g.If(class != "", h.Class(class)), name)
	}
	return h.Table(
		h.THead(h.Tr(
			column("", g.Text("Point")), column("number", g.Text("Value")),
			column("quality", h.Span(g.Text("Quality"))), column("number", g.Text("Age")))),
		h.TBody(g.Map(list, valueRow)),
	)
}

func valueRow(v valueView) g.Node {
	class := "number value"
	if utf8.RuneCountInString(v.Value) > 16 { // a published text, no number: it may break anywhere
		class = "value text"
	}
	value := g.Group{g.Text("–")}
	if v.Value != "" {
		value = g.Group{h.B(g.Text(v.Value))}
		if v.Unit != "" {
			value = append(value, g.Text(" "), h.I(g.Text(v.Unit)))
		}
	}
	return h.Tr(h.Class(v.Level),
		h.Th(h.Scope("row"),
			g.If(v.Path != "", h.Span(g.Text(v.Path))), h.B(g.Text(v.Leaf)), g.If(v.Reason != "", h.Small(g.Text(v.Reason)))),
		h.Td(h.Class(class), value),
		h.Td(h.Class("quality"), icon(v.Level), h.Span(g.Text(v.Quality))),
		h.Td(h.Class("number age"), ago(v.Time)),
	)
}

// backlog is a row of its own where there is one.
func backlog(b backlogView) g.Node {
	if b.None {
		return row("", "Backlog", g.Text("none"))
	}
	return g.Group{
		row("first", "Backlog", g.Text(b.Records+" "+b.Unit)),
		row("", "Its data", g.Text(b.Bytes)),
		row("", "Its oldest", g.Text(b.Age)),
	}
}

// figure is a row that is there only if the figure is.
func figure(class, term, text string) g.Node {
	return g.If(text != "", row(class, term, g.Text(text)))
}

func row(class, term string, detail ...g.Node) g.Node {
	return h.Div(g.If(class != "", h.Class(class)), h.Dt(g.Text(term)), h.Dd(detail...))
}

func kind(text string) g.Node { return h.Span(h.Class("kind"), g.Text(text)) }

func pill(level string, state g.Node) g.Node {
	return h.Span(h.Class("pill "+level), icon(level), state)
}

// ago shows the age, which the script keeps up to date.
func ago(m moment) g.Node {
	if !m.isSet() {
		return g.Text("–")
	}
	return h.Time(h.DateTime(m.iso()), h.Data("since", m.millis()), g.Text(m.age()))
}

// until shows the time to go, which the script keeps up to date.
func until(m moment) g.Node {
	return h.Time(h.DateTime(m.iso()), h.Data("until", m.millis()), g.Text(m.toGo()))
}
