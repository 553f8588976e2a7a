# SPDX-License-Identifier: Apache-2.0

defmodule ExternalService.RetryAfterTest do
  use ExternalService.Case, async: true

  alias ExternalService.RetryAfter

  doctest ExternalService.RetryAfter

  @now ~U[2024-02-29 12:00:00.000Z]

  describe "parse/2" do
    test "takes a number of seconds" do
      assert RetryAfter.parse("0", @now) == {:ok, 0}
      assert RetryAfter.parse("1", @now) == {:ok, 1_000}
      assert RetryAfter.parse("  120 ", @now) == {:ok, 120_000}
      assert RetryAfter.parse("007", @now) == {:ok, 7_000}
      assert RetryAfter.parse("999999999999999", @now) == {:ok, 999_999_999_999_999_000}
    end

    test "takes an HTTP date in each of its three forms" do
      assert RetryAfter.parse("Thu, 29 Feb 2024 12:02:00 GMT", @now) == {:ok, 120_000}
      assert RetryAfter.parse("Thursday, 29-Feb-24 12:02:00 GMT", @now) == {:ok, 120_000}
      assert RetryAfter.parse("Thu Feb 29 12:02:00 2024", @now) == {:ok, 120_000}
      assert RetryAfter.parse("Fri Mar  1 12:00:00 2024", @now) == {:ok, 86_400_000}
    end

    test "counts from now to the millisecond" do
      assert RetryAfter.parse("Thu, 29 Feb 2024 12:00:01 GMT", ~U[2024-02-29 12:00:00.250Z]) == {:ok, 750}
    end

    test "says 0 for a date that is past, however long" do
      for date <- ["Thu, 29 Feb 2024 12:00:00 GMT", "Sun, 06 Nov 1994 08:49:37 GMT", "Sun Nov  6 08:49:37 1994"],
          do: assert(RetryAfter.parse(date, @now) == {:ok, 0})
    end

    test "takes two digits of a year for the year within fifty of now" do
      assert RetryAfter.parse("Sunday, 06-Nov-94 08:49:37 GMT", @now) == {:ok, 0}
      assert {:ok, ms} = RetryAfter.parse("Sunday, 06-Nov-74 08:49:37 GMT", @now)
      assert div(ms, 86_400_000) in 18_000..18_600
    end

    test "takes a leap second for the second before it" do
      assert RetryAfter.parse("Thu, 29 Feb 2024 12:00:60 GMT", @now) == {:ok, 59_000}
    end

    test "is :error for anything else" do
      for header <- [
            "",
            " ",
            "-1",
            "+1",
            "1.5",
            "1e3",
            "0x10",
            "12 seconds",
            "1 2",
            "soon",
            "١٢",
            "\t5",
            "5\n",
            "Thu, 30 Feb 2024 12:00:00 GMT",
            "Thu, 29 Feb 2024 25:00:00 GMT",
            "Thu, 29 Feb 2024 12:60:00 GMT",
            "Thu, 29 Feb 2024 12:00:61 GMT",
            "Thu, 29 Feb 2024 12:00:99 GMT",
            "Thu, 29 Feb 2024 12:00:30 GMT\n",
            "Thursday, 29-Feb-24 12:00:30 GMT\n",
            "Thu Feb 29 12:00:30 2024\n",
            "Thu, 29 Feb 2024 12:00:00 CET",
            "Thu, 29 Feb 2024 12:00:00",
            "29 Feb 2024 12:00:00 GMT",
            "Thu, 29 Foo 2024 12:00:00 GMT",
            "2024-02-29T12:00:00Z",
            <<255, 0>>,
            String.duplicate("9", 16),
            String.duplicate("9", 1_000_000),
            String.duplicate("Thu, ", 100_000),
            nil,
            120,
            :infinity,
            ["120"],
            ~c"chars",
            %{}
          ] do
        assert RetryAfter.parse(header, @now) == :error
      end
    end
  end

  test "parse/1 counts from the system's time" do
    assert {:ok, 0} = RetryAfter.parse("Sun, 06 Nov 1994 08:49:37 GMT")
    assert {:ok, ms} = RetryAfter.parse("Fri, 06 Nov 2099 08:49:37 GMT")
    assert ms > 86_400_000
  end

  describe "{:retry_after, ms, reason}" do
    setup %{service: s}, do: start_recording(s, retry: [base: 10, max_attempts: 3])

    test "waits for as long as the server asked, in place of the backoff's delay", %{service: s} do
      results = [{:retry_after, 1_234, :busy}, :retry, :done]
      assert ExternalService.call(s, attempting_each(results)) == :done
      assert slept() == [1_234, 20]
    end

    test "is a failure like any other: with its reason, counted and given up on", %{service: s} do
      Recorder.attach(s)
      assert {:error, %RetriesExhausted{} = error} = ExternalService.call(s, fn -> {:retry_after, 5, :busy} end)
      assert error.context == %{service: s, reason: :busy, attempts: 3}
      assert slept() == [5, 5]
      assert for({[:call, :retry], _, %{reason: reason}} <- Recorder.events(), do: reason) == [:busy, :busy, :busy]
      assert ExternalService.counts(s).failures == 3
    end

    test "of 0, or of less than nothing, does not wait", %{service: s} do
      assert ExternalService.call(s, attempting_each([{:retry_after, 0, 1}, {:retry_after, -5, 1}, :done])) == :done
      assert slept() == [0, 0]
    end

    test "is bounded by 30 seconds, by :cap, or by :retry_after_max where it is given", %{service: s} do
      for {retry, longest} <- [
            {[], 30_000},
            {[cap: 400], 400},
            {[cap: 400, retry_after_max: 5_000], 5_000},
            {[retry_after_max: 0], 0}
          ],
          asked <- [60_000, Integer.pow(10, 30)] do
        ExternalService.call(s, [max_attempts: 2] ++ retry, fn -> {:retry_after, asked, :busy} end)
        assert slept() == [longest]
        ExternalService.reset(s)
      end
    end

    test "is trimmed to what :expiry leaves, and that attempt is the last", %{service: s} do
      clock = start_on_clock(s, retry: [expiry: 100, max_attempts: 9])
      ExternalService.call(s, attempting({:retry_after, 60, :busy}, clock))
      assert attempt_times() == [0, 60, 100]
    end

    test "ends the call at once where it would pass the deadline", %{service: s} do
      clock = start_on_clock(s, deadline: 1_000)
      assert {:error, error} = ExternalService.call(s, attempting({:retry_after, 1_000, :busy}, clock))
      assert %ExternalService.DeadlineExceeded{context: %{reason: :busy, attempts: 1, skipped: false}} = error
      assert {attempt_times(), VirtualClock.now(clock)} == {[0], 0}
    end

    test "of another shape is a result", %{service: s} do
      for value <- [{:retry_after, "5", :busy}, {:retry_after, 5}, {:retry_after, 1.5, :busy}, :retry_after],
          do: assert(ExternalService.call(s, fn -> value end) == value)
    end
  end
end
