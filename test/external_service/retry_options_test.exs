# SPDX-License-Identifier: Apache-2.0

defmodule ExternalService.RetryOptionsTest do
  use ExternalService.Case, async: true
  doctest ExternalService.RetryOptions

  describe "the struct" do
    test "has the documented defaults" do
      assert %RetryOptions{
               backoff: :exponential,
               base: 10,
               factor: 1,
               cap: nil,
               expiry: nil,
               max_attempts: 5,
               jitter: false,
               retry_on: nil,
               retry_exceptions: []
             } = %RetryOptions{}
    end

    test "has one field for each declared option" do
      declared = Keyword.keys(ExternalService.Options.schema(:retry))
      assert %RetryOptions{} |> Map.from_struct() |> Map.keys() |> Enum.sort() == Enum.sort(declared)
    end
  end

  describe "new/1" do
    test "makes the struct of a keyword list, with defaults for the rest" do
      assert RetryOptions.new([]) == %RetryOptions{}
      assert RetryOptions.new(base: 100, cap: 2000) == %RetryOptions{base: 100, cap: 2000}
    end

    test "returns a struct as it is" do
      options = %RetryOptions{max_attempts: 2}
      assert RetryOptions.new(options) == options
    end

    test "raises a validation error that names the option" do
      error = assert_raise ValidationError, fn -> RetryOptions.new(max_attempts: 0) end
      assert %{key: :max_attempts, value: 0, keys_path: []} = error
      assert Exception.message(error) =~ ~r/^invalid value for :max_attempts option: expected .+, got: 0$/
    end

    test "refuses unknown options by name and lists the valid ones" do
      error = assert_raise ValidationError, fn -> RetryOptions.new(max_retries: 3, base: 1) end
      assert Exception.message(error) =~ "unknown options [:max_retries], valid options are: ["
      for {option, _} <- ExternalService.Options.schema(:retry), do: assert(Exception.message(error) =~ inspect(option))
      assert error.key == [:max_retries]
    end

    test "refuses a cap of nil, which only the struct may have" do
      assert_raise ValidationError, ~r/:cap/, fn -> RetryOptions.new(cap: nil) end
    end
  end

  describe "merge/2" do
    test "lets a keyword list override only the options it lists" do
      base = %RetryOptions{base: 50, max_attempts: 3, jitter: 0.5, retry_exceptions: [KeyError]}
      assert RetryOptions.merge(base, max_attempts: 2) == %{base | max_attempts: 2}
      assert RetryOptions.merge(base, retry_exceptions: []) == %{base | retry_exceptions: []}
      assert RetryOptions.merge(base, []) == base
    end

    test "lets a struct replace everything" do
      assert RetryOptions.merge(%RetryOptions{base: 50}, %RetryOptions{max_attempts: 2}) ==
               %RetryOptions{max_attempts: 2}
    end

    test "checks a struct that was made by hand, also where a field is nil that has to be something" do
      for {option, declared} <- ExternalService.Options.schema(:retry), Keyword.has_key?(declared, :default) do
        odd = struct(RetryOptions, [{option, nil}])
        error = assert_raise ValidationError, fn -> RetryOptions.merge(%RetryOptions{}, odd) end
        assert error.key == option
        assert_raise ValidationError, fn -> ExternalService.call({__MODULE__, option}, odd, fn -> :fine end) end
      end

      assert RetryOptions.new(%RetryOptions{cap: nil, expiry: nil, retry_on: nil}) == %RetryOptions{}
    end

    test "checks what a keyword list overrides" do
      assert_raise ValidationError, ~r/:base/, fn -> RetryOptions.merge(%RetryOptions{}, base: -1) end
    end
  end

  describe "window/1" do
    test "is what a fully failing call waits in all" do
      assert RetryOptions.window([]) == 150
      assert RetryOptions.window(base: 100) == 1500
      assert RetryOptions.window(base: 100, max_attempts: 10) == 51_100
      assert RetryOptions.window(base: 100, max_attempts: 10, cap: 1000) == 6500
      assert RetryOptions.window(backoff: :linear, base: 100) == 1000
      assert RetryOptions.window(max_attempts: 1) == 0
      assert RetryOptions.window(%RetryOptions{base: 100}) == 1500
    end

    test "takes the expiry into account" do
      assert RetryOptions.window(base: 100, expiry: 1000) == 1000
      assert RetryOptions.window(base: 100, expiry: 2000) == 1500
    end

    test "leaves jitter out" do
      assert RetryOptions.window(base: 100, jitter: 0.9) == 1500
    end

    test "of unbounded attempts is the expiry, or :infinity" do
      assert RetryOptions.window(max_attempts: :infinity, expiry: 700) == 700
      assert RetryOptions.window(max_attempts: :infinity) == :infinity
      assert RetryOptions.window(max_attempts: :infinity, expiry: :infinity) == :infinity
    end

    test "of a million attempts is a number, not an overflow" do
      assert RetryOptions.window(base: 1, cap: 30_000, max_attempts: 1_000_000) ==
               Enum.sum(for n <- 0..14, do: Integer.pow(2, n)) + (999_999 - 15) * 30_000

      window = RetryOptions.window(max_attempts: 1_000_000)
      assert window == :infinity or window > 1_000_000_000
    end
  end
end
