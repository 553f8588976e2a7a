# SPDX-License-Identifier: Apache-2.0

defmodule ExternalService.Native.LimiterPropertyTest do
  # The limiter against the plainest one: the generic cell rate algorithm in exact fractions.
  #
  # SEQUENCES is how many sequences of arrivals are tried, at least 250,000; a million take about a minute:
  #
  #     SEQUENCES=1000000 mix test test/native/limiter_property_test.exs
  use ExternalService.Case, async: true

  alias :proper_types, as: Gen

  alias ExternalService.Native

  @moduletag :property
  @moduletag timeout: :infinity

  @sequences max(250_000, String.to_integer(System.get_env("SEQUENCES", "0")))

  # The model: the time up to which everything is refilled, in nanoseconds times the limit, so that it is exact.
  defp model_wait(_full, _now, cost, {limit, _per}) when cost > limit, do: :infinity

  defp model_wait(full, now, cost, {limit, per} = rate) do
    due = model_take(full, now, cost, rate) - limit * per
    max(-Integer.floor_div(-due, limit) - now, 0)
  end

  defp model_take(full, now, cost, {limit, per}), do: max(full, now * limit) + cost * per

  # The limiter: how long the call has to wait, and the place that it took.
  defp limiter_wait(limiter, cost, wait) do
    case Native.limiter_reserve(limiter, cost, wait) do
      place when is_integer(place) -> {0, place}
      {:wait, ns, place} -> {ns, place}
      {:refused, ns} -> {ns, nil}
    end
  end

  defp peeked_wait(limiter, cost) do
    case Native.limiter_peek(limiter, cost) do
      :ok -> 0
      {:refused, ns} -> ns
    end
  end

  # The limiter never keeps a call waiting longer than the model does, so it never refuses what the model admits; and it
  # lets none go before the model does, except that a limit that does not divide its time may round to one nanosecond.
  defp agrees?(ns, ns, _rate), do: true
  defp agrees?(ns, model, {limit, per}), do: ns + 1 == model and rem(per, limit) != 0

  defp follows?([], _limiter, _clock, _full, _rate), do: true

  defp follows?([{advance, cost, wait, keep?} | steps], limiter, clock, full, rate) do
    Native.clock_advance(clock, advance)
    now = Native.clock_now(clock)
    peeked = peeked_wait(limiter, cost)
    {ns, place} = limiter_wait(limiter, cost, wait)
    fits? = ns != :infinity and ns <= wait
    sound? = peeked == ns and agrees?(ns, model_wait(full, now, cost, rate), rate) and fits? == (place != nil)
    sound? and follows?(steps, limiter, clock, taken(place, keep?, {limiter, full, now, cost, rate}), rate)
  end

  defp taken(nil, _keep?, {_limiter, full, _now, _cost, _rate}), do: full
  defp taken(_place, true, {_limiter, full, now, cost, rate}), do: model_take(full, now, cost, rate)

  # What is given back at once was never taken.
  defp taken(place, false, {limiter, full, _now, cost, _rate}) do
    :ok = Native.limiter_give_back(limiter, cost, place)
    full
  end

  # PropEr's LET, which is a macro of Erlang's.
  defp let(type, fun), do: Gen.bind(type, fun, false)

  # A limit and the nanoseconds it is for: from a few, where all the edges are, to what users write.
  defp rate do
    few = let(Gen.integer(1, 60), &{Gen.integer(1, &1), &1})
    usual = {Gen.integer(1, 50), Gen.oneof([1_000_000, 10_000_000_000, 60_000_000_000])}
    any = let(Gen.integer(1, 1_000_000_000_000), &{Gen.integer(1, &1), &1})
    Gen.frequency([{5, few}, {4, usual}, {1, any}])
  end

  # Around whole intervals and whole times, where a nanosecond matters; else anything.
  defp time({limit, per}) do
    interval = div(per, limit)

    Gen.frequency([
      {4, 0},
      {4, let({Gen.integer(0, 3), Gen.integer(-1, 1)}, fn {n, off} -> max(n * interval + off, 0) end)},
      {1, Gen.integer(per - 1, per + 1)},
      {2, Gen.integer(0, 2 * per)}
    ])
  end

  defp wait(rate), do: Gen.frequency([{4, 0}, {4, time(rate)}, {1, :infinity}])

  defp cost({limit, _per}),
    do: Gen.frequency([{6, 1}, {2, Gen.integer(1, min(limit, 5))}, {1, Gen.integer(1, limit + 1)}])

  defp step(rate), do: {time(rate), cost(rate), wait(rate), Gen.frequency([{9, true}, {1, false}])}
  defp arrivals, do: let(rate(), &{&1, Gen.list(step(&1))})

  test "no sequence of arrivals gets more from the limiter than from the plain model, nor less" do
    check(arrivals(), @sequences, fn {rate, steps} ->
      clock = Native.clock_new(0)
      follows?(steps, Native.limiter_new(rate, clock), clock, 0, rate)
    end)
  end
end
