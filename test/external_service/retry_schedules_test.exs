# SPDX-License-Identifier: Apache-2.0

defmodule ExternalService.RetrySchedulesTest do
  use ExternalService.Case, async: true

  alias ExternalService.Native

  @ms 1_000_000
  @samples 100_000

  # The delays of a call that fails throughout, as the sleep function is told them.
  defp delays(service, retry) do
    ExternalService.call(service, retry, fn -> :retry end)
    slept()
  end

  describe "the delays" do
    setup %{service: s}, do: start_recording(s, circuit_breaker: [tolerate: :infinity])

    test "of constant backoff are base", %{service: s} do
      assert delays(s, backoff: :constant, base: 70) == [70, 70, 70, 70]
      assert delays(s, backoff: :constant, base: 70, cap: 50, max_attempts: 3) == [50, 50]
    end

    test "of exponential backoff grow by the multiplier", %{service: s} do
      assert delays(s, base: 100, multiplier: 3) == [100, 300, 900, 2_700]
      assert delays(s, base: 100, multiplier: 1.5) == [100, 150, 225, 338]
      assert delays(s, base: 100, multiplier: 1) == [100, 100, 100, 100]
      assert delays(s, base: 100, multiplier: 10, cap: 5_000) == [100, 1_000, 5_000, 5_000]
    end

    test "of linear backoff grow by the increment in place of factor times base", %{service: s} do
      assert delays(s, backoff: :linear, base: 100, increment: 25) == [100, 125, 150, 175]
      assert delays(s, backoff: :linear, base: 0, increment: 1) == [0, 1, 2, 3]
      assert delays(s, backoff: :linear, base: 100, increment: 0) == [100, 100, 100, 100]
      assert delays(s, backoff: :linear, base: 100, increment: 25, factor: 7) == [100, 125, 150, 175]
    end

    test "of a list are its own, the last one again and again", %{service: s} do
      assert delays(s, backoff: [5, 0, 70], max_attempts: 7) == [5, 0, 70, 70, 70, 70]
      assert delays(s, backoff: [5, 0, 70], max_attempts: 3) == [5, 0]
      assert delays(s, backoff: [500, 1], cap: 100) == [100, 1, 1, 1]
    end

    test "of a function are what it says for each retry, from 1 on", %{service: s} do
      assert delays(s, backoff: &(&1 * &1)) == [1, 4, 9, 16]
      assert delays(s, backoff: fn _ -> 1_000 end, cap: 300) == [300, 300, 300, 300]
      assert delays(s, backoff: &(&1 / 2)) == [1, 1, 2, 2]
    end

    test "of a function that says something impossible are held at what is possible", %{service: s} do
      assert delays(s, backoff: fn _ -> -5 end) == [0, 0, 0, 0]
      assert delays(s, backoff: fn _ -> Integer.pow(10, 40) end, cap: 30_000) == [30_000, 30_000, 30_000, 30_000]
      assert delays(s, backoff: fn _ -> 1.0e300 end, cap: 30_000, max_attempts: 2) == [30_000]
    end

    test "of a function that says no number end the call with an error that says so", %{service: s} do
      for wrong <- [nil, :soon, "5", [1]] do
        error = raised(fn -> ExternalService.call(s, [backoff: fn _ -> wrong end], attempting(:retry)) end)
        assert %ArgumentError{} = error
        assert Exception.message(error) =~ inspect(wrong)
        assert attempts() == 1
      end
    end

    test "of a function are asked for no retry that there will not be", %{service: s} do
      backoff = fn
        1 -> 3
        2 -> 7
      end

      assert delays(s, backoff: backoff, max_attempts: 3) == [3, 7]
      assert RetryOptions.window(backoff: backoff, max_attempts: 3) == 10
      never = fn _retry -> flunk("it was asked") end
      assert RetryOptions.window(backoff: never, max_attempts: 1) == 0
      start_recording(s, retry: [backoff: backoff, max_attempts: 3])
      assert delays(s, []) == [3, 7]
    end

    test "of every backoff are spread by jitter and trimmed by expiry", %{service: s} do
      for backoff <- [:exponential, :linear, :constant, [1_000], fn _ -> 1_000 end] do
        clock = start_on_clock(s, circuit_breaker: [tolerate: :infinity])
        retry = [backoff: backoff, base: 1_000, jitter: 0.5, expiry: 2_345, max_attempts: :infinity]
        ExternalService.call(s, retry, attempting(:retry, clock))
        times = attempt_times()
        assert List.last(times) == 2_345
        assert Enum.at(times, 1) in 500..1_500
      end
    end

    test "with full jitter lie between nothing and the backoff's delay", %{service: s} do
      all = for _ <- 1..300, do: delays(s, base: 1_000, jitter: :full, max_attempts: 3)
      for [first, second] <- all, do: assert(first in 0..1_000 and second in 0..2_000)
      firsts = Enum.map(all, &hd/1)
      assert Enum.min(firsts) < 100 and Enum.max(firsts) > 900
    end

    test "with decorrelated jitter lie between base and three times the delay before", %{service: s} do
      for _ <- 1..100 do
        delays = delays(s, base: 100, jitter: :decorrelated, max_attempts: 8, cap: 5_000)

        for {before, delay} <- Enum.zip([100 | delays], delays),
            do: assert(delay in 100..min(max(3 * before, 100), 5_000))
      end
    end

    test "with decorrelated jitter take no more than the first delay from a function", %{service: s} do
      all = for _ <- 1..100, do: delays(s, backoff: &(&1 * 100), jitter: :decorrelated, max_attempts: 4)
      for delays <- all, {before, delay} <- Enum.zip([100 | delays], delays), do: assert(delay in 100..(3 * before))
      assert all |> Enum.map(&List.last/1) |> Enum.min() < 300
    end
  end

  describe "the window" do
    test "is the sum of the delays of every backoff" do
      for {retry, sum} <- [
            {[backoff: :constant, base: 70], 280},
            {[base: 100, multiplier: 3], 4_000},
            {[base: 100, multiplier: 10, cap: 5_000], 11_100},
            {[backoff: :linear, base: 100, increment: 25], 550},
            {[backoff: [5, 0, 70], max_attempts: 7], 285},
            {[backoff: &(&1 * &1)], 30},
            {[backoff: fn _ -> 100 end, cap: 30], 120},
            {[backoff: [1_000], expiry: 1_500], 1_500},
            {[backoff: :constant, base: 1, max_attempts: :infinity], :infinity}
          ] do
        assert RetryOptions.window(retry) == sum
      end
    end

    test "of the multiplier and many attempts is there at once, and never beyond what the clock counts" do
      assert RetryOptions.window(multiplier: 1.000001, max_attempts: 1_000_000) > 10_000_000
      assert RetryOptions.window(multiplier: 1_000, max_attempts: 1_000_000) > 1_000_000_000
    end
  end

  describe "over #{@samples} samples" do
    @cap 1_000 * @ms

    for {name, jitter, low, high} <- [
          {"a proportion", 100_000, 0.8, 1.0},
          {"full", :full, 0.0, 1.0},
          {"decorrelated", :decorrelated, 0.01, 1.0}
        ] do
      test "jitter of #{name} at the cap is never above it, spread evenly over its band, and keeps callers apart" do
        {low, high} = {unquote(low) * @cap, unquote(high) * @cap}
        schedule = {:exponential, 10 * @ms, 0, 2_000_000, {}, @cap, :infinity, :infinity, unquote(jitter), @cap}
        clock = ExternalService.VirtualClock.handle(VirtualClock.new(7))
        drawn = for _ <- 1..@samples, do: Native.backoff_next(schedule, 1_000_000, @cap, 0, :infinity, clock)
        assert Enum.min(drawn) >= low and Enum.max(drawn) <= high
        assert_in_delta Enum.sum(drawn) / @samples, (low + high) / 2, 0.01 * @cap

        for {quartile, at} <- [{0.25, 0.25}, {0.5, 0.5}, {0.75, 0.75}] do
          below = Enum.count(drawn, &(&1 < low + at * (high - low)))
          assert_in_delta below / @samples, quartile, 0.01
        end

        assert length(Enum.uniq(drawn)) > 0.9 * @samples
      end
    end
  end

  test "no retry number gives a delay below 0 or above the cap, whatever the backoff and the jitter" do
    numbers = Enum.flat_map([1, 2, 63, 64, 65, 67, 1_000, 1_000_000, 0xFFFFFFFFFFFFFFFE], &[&1, max(&1 - 1, 1)])

    for curve <- [:exponential, :linear, :constant, :list],
        jitter <- [0, 100_000, 1_000_000, :full, :decorrelated],
        base <- [0, 1, @ms, 0x7FFFFFFFFFFFFFFF],
        multiplier <- [1_000_000, 1_000_001, 2_000_000, 1_000_000_000],
        cap <- [1, 30_000 * @ms],
        number <- numbers do
      delays = if curve == :list, do: {base}, else: {}
      schedule = {curve, base, base, multiplier, delays, cap, :infinity, :infinity, jitter, cap}
      assert Native.backoff_next(schedule, number, cap, 0, :infinity, nil) in 0..cap
    end
  end

  test "a retry number that no word holds is refused, and not taken for another" do
    schedule = {:exponential, @ms, 0, 2_000_000, {}, :infinity, :infinity, :infinity, 0, @ms}

    for number <- [0, -1, Integer.pow(2, 64), Integer.pow(10, 30)],
        do: assert_raise(ArgumentError, fn -> Native.backoff_next(schedule, number, 0, 0, :infinity, nil) end)
  end
end
