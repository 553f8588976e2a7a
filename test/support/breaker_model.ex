# SPDX-License-Identifier: Apache-2.0

defmodule ExternalService.BreakerModel do
  @moduledoc false
  # What a breaker is to do, in the plainest way: every outcome is kept and counted anew. Nothing is left to chance here.
  #
  # Time ends states when it passes, here as there. `unseen?` says that nobody has looked since it did so.

  @never :infinity

  def new(config) do
    %{
      config: config,
      now: 0,
      state: :closed,
      generation: 0,
      until: 0,
      open_time: config.reset,
      outcomes: [],
      consecutive: 0,
      succeeded: 0,
      probes: [],
      next_probe: 0,
      rejected: 0,
      ignored: 0,
      changed_at: 0,
      reason: nil,
      changes: [],
      unseen?: false,
      permits: []
    }
  end

  def advance(%{generation: generation} = model, time) do
    model = pass_time(%{model | now: model.now + time})
    %{model | unseen?: model.unseen? or model.generation != generation}
  end

  @doc "The model after somebody has looked."
  def seen(model), do: %{pass_time(model) | unseen?: false}

  @doc "The model after listeners have heard of every change."
  def told(model), do: %{model | changes: []}

  @doc "What who only asks is answered: it takes a look to see that time has changed something, or a probe's place."
  def ask(%{unseen?: true}), do: :due
  def ask(%{state: state}) when state in [:closed, :bypassed], do: :ok
  def ask(%{state: :half_open} = model), do: if(wants_probe?(pass_time(model)), do: :due, else: :blown)
  def ask(_model), do: :blown

  @doc "Whether a call is admitted, or for how long not, the model after it, and the permit it got."
  def admit(model) do
    model = pass_time(model)

    cond do
      model.state in [:closed, :bypassed] -> {:admitted, model, {model.generation, nil}}
      model.state == :half_open and wants_probe?(model) -> take_probe(model)
      true -> {{:open, retry_after(model)}, %{model | rejected: model.rejected + 1}, nil}
    end
  end

  defp take_probe(%{next_probe: id} = model) do
    {:admitted, %{model | probes: model.probes ++ [{id, model.now}], next_probe: id + 1}, {model.generation, id}}
  end

  @doc "The process that holds this permit is gone."
  def lose(model, {generation, id}) do
    if generation == model.generation, do: %{model | probes: List.keydelete(model.probes, id, 0)}, else: model
  end

  # What says nothing is counted as such in the state that is there, or that nobody has seen the end of.
  def report(model, permit, outcome, duration) do
    model = if outcome == :ignore and not model.unseen?, do: %{model | ignored: model.ignored + 1}, else: model
    heard(pass_time(model), permit, outcome, duration)
  end

  defp heard(model, {generation, _id}, _outcome, _duration) when generation != model.generation, do: model
  defp heard(model, {_generation, nil}, :ignore, _duration), do: model
  defp heard(%{state: :half_open} = model, {_generation, nil}, _outcome, _duration), do: model
  defp heard(model, {_generation, nil}, outcome, duration), do: model |> record(outcome, duration) |> trip(outcome)

  defp heard(model, {_generation, id}, outcome, duration) do
    if List.keymember?(model.probes, id, 0),
      do: back(%{model | probes: List.keydelete(model.probes, id, 0)}, outcome, duration),
      else: model
  end

  defp back(model, :ignore, _duration), do: model

  defp back(model, :failure, duration) do
    longer = min(div(model.open_time * model.config.reset_factor, 1_000_000), model.config.reset_max)
    open(%{record(model, :failure, duration) | open_time: longer}, nil)
  end

  defp back(model, :success, duration) do
    model = record(%{model | succeeded: model.succeeded + 1}, :success, duration)

    if model.succeeded >= model.config.successes, do: change(model, :closed), else: model
  end

  def melt(%{state: state, config: %{probes: probes}} = model) when state in [:open, :forced_open] and probes > 0,
    do: model

  def melt(%{state: :half_open} = model), do: model

  def melt(model) do
    model = pass_time(model)
    if model.state in [:closed, :bypassed], do: model |> record(:failure, 0) |> trip(:failure), else: model
  end

  def open_by_hand(model, time, reason) do
    model = pass_time(model)
    told = [retry_after: time, reason: reason]
    model = if model.state == :forced_open, do: model, else: change(model, :forced_open, told)
    %{model | reason: reason, until: if(time == @never, do: @never, else: model.now + time)}
  end

  def close(model), do: change_unless(pass_time(model), :closed)
  def bypass(model), do: change_unless(pass_time(model), :bypassed)

  def reset(model) do
    case pass_time(model) do
      # No change that anybody is told of: what was refused since the last one stays counted.
      %{state: :closed} = model -> %{forget(model) | generation: model.generation + 1}
      model -> change(model, :closed)
    end
  end

  defp change_unless(%{state: state} = model, state), do: model
  defp change_unless(model, state), do: change(model, state)

  @doc "What a look at the breaker shows."
  def look(model) do
    model = pass_time(model)

    %{
      state: model.state,
      counts: counts(model),
      rejected: model.rejected,
      ignored: model.ignored,
      changed_at: model.changed_at,
      reason: model.reason,
      probes: length(model.probes),
      retry_after: retry_after(model)
    }
  end

  defp pass_time(%{state: :half_open, config: %{lease: lease}} = model),
    do: %{model | probes: Enum.filter(model.probes, fn {_id, taken} -> model.now - taken < lease end)}

  defp pass_time(%{state: state, until: until} = model)
       when state in [:open, :forced_open] and until != @never and model.now >= until do
    change(model, if(model.config.probes > 0, do: :half_open, else: :closed), at: until)
  end

  defp pass_time(model), do: model

  # Listeners hear of it with what was counted when it happened, before anything is forgotten.
  defp change(model, to, told \\ []) do
    at = Keyword.get(told, :at, model.now)

    change = %{
      from: model.state,
      to: to,
      rule: told[:rule],
      counts: counts(%{model | now: at}),
      reason: told[:reason],
      retry_after: Keyword.get(told, :retry_after, 0)
    }

    model = %{model | changes: model.changes ++ [change], changed_at: at, state: to, generation: model.generation + 1}
    model = %{model | reason: nil, succeeded: 0, probes: [], rejected: 0, ignored: 0}
    if to == :closed, do: forget(model), else: model
  end

  defp forget(model), do: %{model | outcomes: [], consecutive: 0, open_time: model.config.reset}

  defp open(model, rule),
    do: %{change(model, :open, rule: rule, retry_after: model.open_time) | until: model.now + model.open_time}

  defp record(model, outcome, duration) do
    failed? = outcome == :failure
    seen = %{failed?: failed?, slow?: duration >= model.config.slow_call, at: model.now}
    %{model | outcomes: [seen | model.outcomes], consecutive: if(failed?, do: model.consecutive + 1, else: 0)}
  end

  defp trip(%{state: :closed} = model, outcome) do
    fired = for {rule, true} <- fired(model, outcome), do: rule
    if fired == [], do: model, else: open(model, hd(fired))
  end

  defp trip(model, _outcome), do: model

  defp fired(%{config: config} = model, outcome) do
    counts = counts(model)
    enough? = counts.calls >= config.min_calls

    [
      tolerate: outcome == :failure and config.tolerate != :infinity and counts.window_failures > config.tolerate,
      failure_rate: enough? and share?(counts.failures, counts.calls, config.failure_rate),
      slow_rate: enough? and share?(counts.slow, counts.calls, config.slow_rate),
      consecutive: config.consecutive > 0 and counts.consecutive >= config.consecutive
    ]
  end

  defp share?(some, of, ppm), do: ppm > 0 and some * 1_000_000 >= ppm * of

  defp counts(%{config: config} = model) do
    failures = Enum.count(model.outcomes, &(&1.failed? and model.now - &1.at < config.within))
    tally = tallied(model)

    %{
      window_failures: if(config.tolerate == :infinity, do: 0, else: min(failures, config.tolerate + 1)),
      calls: length(tally),
      failures: Enum.count(tally, & &1.failed?),
      slow: Enum.count(tally, & &1.slow?),
      consecutive: model.consecutive
    }
  end

  # Ten buckets over the time, or the last calls.
  defp tallied(%{config: %{window_time: span}} = model) when span > 0 do
    bucket = &div(&1, div(span, 10))
    Enum.filter(model.outcomes, &(bucket.(model.now) - bucket.(&1.at) < 10))
  end

  defp tallied(%{config: %{window_calls: calls}} = model), do: Enum.take(model.outcomes, calls)

  defp wants_probe?(%{config: config, probes: probes, succeeded: succeeded}) do
    out = length(probes)
    out < config.probes and out + succeeded < max(config.probes, config.successes)
  end

  defp retry_after(%{state: state, until: @never}) when state in [:open, :forced_open], do: :infinity
  defp retry_after(%{state: state} = model) when state in [:open, :forced_open], do: model.until - model.now

  defp retry_after(%{state: :half_open, config: %{lease: lease}} = model) do
    cond do
      wants_probe?(model) -> 0
      lease == @never -> @never
      true -> (model.probes |> hd() |> elem(1)) + lease - model.now
    end
  end

  defp retry_after(_model), do: 0
end
